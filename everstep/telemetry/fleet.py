"""Values of all jobs and of the isolated nodes, read from the Temporal server for the fleet's metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.fleet_totals import FleetSum
from everstep.core import names
from everstep.report.accounting import seconds

OPEN_STATES = (
    "pending",
    "launching",
    "running",
    "recovering",
    "unreachable",
    "paused",
    "stopping",
)
ANSWER = timedelta(seconds=3)

T = TypeVar("T")

logger = logging.getLogger("everstep.telemetry")


def _open_jobs(state: str) -> str:
    """The list filter of jobs in this state."""
    return (
        f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus = 'Running' "
        f"AND TrainState = '{state}'"
    )


@dataclass(slots=True)
class Fleet:
    """The newest values; those that could not be read stay as they were."""

    client: Client
    cluster: str
    # Returns the newest heartbeats of this worker's monitors.
    monitors: Callable[[], Iterable[Mapping[str, Any]]] = lambda: ()
    jobs: Mapping[str, int] = field(default_factory=dict)
    longest_wait_s: float = 0.0  # of a job that launches
    isolated: int | None = None  # None: not read yet
    longest_s: float = 0.0  # how long the first of them is isolated
    sum: FleetSum | None = None  # None: not read yet

    async def read(self) -> None:
        try:
            self.jobs = {state: await self._count(state) for state in OPEN_STATES}
            self.longest_wait_s = await self._longest_wait_s() if self.jobs["launching"] else 0.0
            await self._read_isolated()
            await self._read_totals()
        except (
            RPCError,
            WorkflowQueryFailedError,
        ) as error:  # the server, or the only worker, is away
            logger.info("the values of the fleet are as old as the last answer: %s", error.message)

    async def _count(self, state: str) -> int:
        return (await self.client.count_workflows(_open_jobs(state), rpc_timeout=ANSWER)).count

    async def _longest_wait_s(self) -> float:
        """How long the oldest launching phase waits: each phase is a workflow run of its own."""
        rows = self.client.list_workflows(_open_jobs("launching"), rpc_timeout=ANSWER)
        began = [row.start_time.timestamp() async for row in rows]
        return max(time.time() - min(began), 0.0) if began else 0.0

    async def _read_isolated(self) -> None:
        """A cluster without a quarantine has isolated nothing yet."""
        nodes = await self._ask(names.quarantine_id(self.cluster), "nodes", list[dict[str, Any]])
        rows = nodes or []
        isolated = [row for row in rows if row["state"] == "isolated"]
        began = [seconds(str(row["since"])) or 0.0 for row in isolated if row["since"]]
        self.isolated = len(isolated)
        self.longest_s = max(time.time() - min(began), 0.0) if began else 0.0

    async def _read_totals(self) -> None:
        answer = await self._ask(names.totals_id(self.cluster), "totals", FleetSum)
        self.sum = answer or FleetSum(totals=JobTotals(), ends={})

    async def _ask(self, workflow_id: str, query: str, kind: type[T]) -> T | None:
        """The answer; None where there is no such workflow."""
        handle = self.client.get_workflow_handle(workflow_id)
        try:
            answer: T = await handle.query(query, rpc_timeout=ANSWER, result_type=kind)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None
        return answer
