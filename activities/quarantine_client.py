"""The quarantine, reached by an update or a signal that starts it if it is not there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from everstep.core import names
from everstep.core.counting.occurrences import FaultCount
from everstep.core.recovering.quarantine import (
    DeviceAnswer,
    DeviceReport,
    QuarantineAnswer,
    Request,
    scaled,
)
from everstep.steps.step_run import QuarantineUnreachable

T = TypeVar("T")

TASK_TIMEOUT = timedelta(seconds=3)

AGAIN_S = 0.5

UNREACHABLE = (
    TimeoutError,
    RPCError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateFailedError,
)
"""Whatever keeps the answer away, the job isolates for itself and goes on."""


def start_options(cluster: str) -> dict[str, Any]:
    """How the quarantine of a cluster is started where it does not run yet."""
    return {
        "id": names.quarantine_id(cluster),
        "task_queue": names.TASK_QUEUE,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "task_timeout": TASK_TIMEOUT,
        "static_summary": f"isolated nodes of cluster {cluster}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalQuarantine:
    """The quarantines of all clusters this worker serves."""

    client: Client
    patience: timedelta
    time_scale: float = 1.0

    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        """Repeats the request until it is answered; a quarantine that ended in between is started again."""
        return await self._update(
            cluster, "isolate", scaled(request, self.time_scale), QuarantineAnswer
        )

    async def note_faults(self, cluster: str, report: DeviceReport) -> tuple[FaultCount, ...]:
        """Report faults that are to be counted: a report that comes twice counts once."""
        return (await self._update(cluster, "note_faults", report, DeviceAnswer)).counts

    async def _update(self, cluster: str, name: str, argument: Any, result_type: type[T]) -> T:
        gives_up_at = time.monotonic() + self.patience.total_seconds()
        while True:
            left = gives_up_at - time.monotonic()
            try:
                async with asyncio.timeout(left):
                    return await self._update_once(cluster, name, argument, result_type)
            except UNREACHABLE as error:
                if (call := asyncio.current_task()) is not None and call.cancelling():
                    raise asyncio.CancelledError from error  # the client makes another error of it
                if time.monotonic() + AGAIN_S >= gives_up_at:
                    raise QuarantineUnreachable from error
            await asyncio.sleep(AGAIN_S)

    async def hand_over(self, cluster: str, request: Request) -> None:
        """Leave the request with the server, as a signal: it is carried out once a worker is there."""
        await self.client.start_workflow(
            names.NODE_QUARANTINE,
            {"cluster": cluster},
            start_signal="isolate",
            start_signal_args=[scaled(request, self.time_scale)],
            **start_options(cluster),
        )

    async def _update_once(self, cluster: str, name: str, argument: Any, result_type: type[T]) -> T:
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            names.NODE_QUARANTINE, {"cluster": cluster}, **start_options(cluster)
        )
        try:
            answer: T = await self.client.execute_update_with_start_workflow(
                name, argument, start_workflow_operation=start, result_type=result_type
            )
        except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
            # The start has the same error, and prints it unless it is read there too.
            with contextlib.suppress(RPCError, asyncio.CancelledError):
                await start.workflow_handle()
            raise
        return answer
