"""The sandbox is entered when a workflow acts, not for each of its payloads."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from temporalio.converter import WithSerializationContext
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from everstep.converter import DATA_CONVERTER
from everstep.encryption.codec import Codec, WithoutKeys
from everstep.plugin import EverstepPlugin
from tests.replay.test_replay import FILES, loaded


class Counted:
    """A workflow in its sandbox, and how often each of its methods was called."""

    def __init__(self, sandboxed: WorkflowInstance, calls: Counter[str]) -> None:
        self._sandboxed = sandboxed
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._sandboxed, name)


async def test_a_workflow_is_called_in_its_sandbox_for_activations_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    create = SandboxedWorkflowRunner.create_instance

    def counted(runner: SandboxedWorkflowRunner, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return cast("WorkflowInstance", Counted(create(runner, det), calls))

    monkeypatch.setattr(SandboxedWorkflowRunner, "create_instance", counted)
    replayer = Replayer(workflows=[], plugins=[EverstepPlugin()])
    await replayer.replay_workflow(loaded(FILES[0]))
    assert calls["activate"] > 3
    assert set(calls) <= {"activate", "get_info", "get_thread_id"}, calls


def test_nothing_that_encodes_our_payloads_looks_at_their_context() -> None:
    for codec in (Codec, WithoutKeys):
        assert not issubclass(codec, WithSerializationContext)
    assert DATA_CONVERTER.external_storage is None
