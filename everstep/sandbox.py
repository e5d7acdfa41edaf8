"""Where workflows run: the SDK's sandbox, entered when a workflow acts and for nothing else.

The SDK reads the context of every payload that it encodes or decodes from a workflow's instance, and enters
the sandbox each time. Contexts are for codecs and stores of payloads: our codec needs none.
"""

from __future__ import annotations

from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info


class WithoutContexts(WorkflowInstance):
    """A workflow in its sandbox whose payloads have no context."""

    def __init__(self, sandboxed: WorkflowInstance) -> None:
        self._sandboxed = sandboxed

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._sandboxed.activate(act)

    def get_serialization_context(self, _command_info: Any) -> None:
        return None

    def get_external_store_context(self, _command_info: Any) -> StorageDriverStoreContext:
        return StorageDriverStoreContext()

    def get_info(self) -> Info:
        return self._sandboxed.get_info()

    def get_thread_id(self) -> int | None:
        return self._sandboxed.get_thread_id()


class Sandbox(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return WithoutContexts(super().create_instance(det))


def sandbox() -> Sandbox:
    """Our own modules are loaded once for all workflows."""
    shared = SandboxRestrictions.default.with_passthrough_modules(
        "everstep", "workflows", "activities", "pydantic", "re2", "yaml"
    )
    return Sandbox(restrictions=shared)
