"""Labels of what an activity logs: its workflow sends them in a header, so that no order carries them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    Interceptor,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from everstep.telemetry.worker_log import log_with_job

HEADER = "everstep-labels"

Labels = Mapping[str, Any]
"""`job` and `first_run`, and where they are known `phase` and `generation`; empty: it works for no job."""

Order = TypeVar("Order", StartActivityInput, StartLocalActivityInput)


class LogLabels(Interceptor):
    """Interceptor of a worker: activities log the labels of the workflow that ordered them.

    A workflow that works for one job returns them from its method `log_labels`.
    """

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # the SDK's name
        return _Labeled(next)

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002  # the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        return _Labeling


class _Labeled(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  # the SDK's name
        if (labels := input.headers.get(HEADER)) is not None:
            log_with_job(**json.loads(labels.data))
        return await super().execute_activity(input)


class _Labeling(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Orders(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002  # the SDK's name
        if labels := _labels():
            log_with_job(**labels)
        return await super().execute_workflow(input)


class _Orders(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002  # the SDK's name
        return super().start_activity(_labeled(input))

    def start_local_activity(
        self,
        input: StartLocalActivityInput,  # noqa: A002  # the SDK's name
    ) -> workflow.ActivityHandle[Any]:
        return super().start_local_activity(_labeled(input))


def _labels() -> Labels:
    instance = workflow.instance()
    return instance.log_labels() if hasattr(instance, "log_labels") else {}


def _labeled(order: Order) -> Order:
    labels = _labels()
    if not labels:
        return order
    data = json.dumps(labels, separators=(",", ":")).encode()
    header = Payload(metadata={"encoding": b"json/plain"}, data=data)
    return replace(order, headers={**order.headers, HEADER: header})
