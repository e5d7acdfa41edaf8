"""Values of all jobs and of the isolated nodes, read from the Temporal server for the fleet's metrics.

And how long the cluster has not answered this worker, which sends it a request as often.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.fleet_totals import FleetSum
from everstep.core import names
from everstep.core.errors import BackendUnavailable
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
CLUSTER_ANSWERS_S = 5.0
"""Time that a cluster has to answer, before it counts as unreachable."""

T = TypeVar("T")

LOG = logging.getLogger("everstep.telemetry")


async def _answers() -> None:
    """A cluster that always answers."""


def _open_jobs(state: str, cluster: str) -> str:
    """The list filter of jobs of the cluster in this state."""
    return (
        f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus = 'Running' "
        f"AND TrainState = '{state}' AND TrainCluster = {names.filter_value(cluster)}"
    )


@dataclass(slots=True)
class Fleet:
    """The newest values; those that could not be read stay as they were."""

    client: Client
    cluster: str
    # Returns the newest heartbeats of this worker's monitors.
    monitors: Callable[[], Iterable[Mapping[str, Any]]] = lambda: ()
    # Returns once the cluster has answered. Raises BackendUnavailable.
    probe: Callable[[], Awaitable[object]] = _answers
    # Returns how long the webhook has taken no notice; None: there is none.
    webhook_unreachable_s: Callable[[], float | None] = lambda: None
    jobs: Mapping[str, int] = field(default_factory=dict)
    longest_wait_s: float = 0.0  # of a job that launches
    isolated: int | None = None  # None: not read yet
    longest_s: float = 0.0  # how long the first of them is isolated
    sum: FleetSum | None = None  # None: not read yet
    _silent_since: float | None = None  # of the cluster; None: it answered

    def cluster_unreachable_s(self) -> float:
        """How long the cluster has not answered this worker."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    async def read(self) -> None:
        await asyncio.gather(self._read_cluster(), self._read_server())

    async def _read_cluster(self) -> None:
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(CLUSTER_ANSWERS_S):
                await self.probe()
        except (BackendUnavailable, TimeoutError):
            self._silent_since = sent_at if self._silent_since is None else self._silent_since
        else:
            self._silent_since = None

    async def _read_server(self) -> None:
        try:
            self.jobs = {state: await self._count(state) for state in OPEN_STATES}
            self.longest_wait_s = await self._longest_wait_s() if self.jobs["launching"] else 0.0
            await self._read_isolated()
            await self._read_totals()
        except (
            RPCError,
            WorkflowQueryFailedError,
        ) as error:  # the server, or the only worker, is away
            LOG.info("the values of the fleet are as old as the last answer: %s", error.message)

    async def _count(self, state: str) -> int:
        return (
            await self.client.count_workflows(_open_jobs(state, self.cluster), rpc_timeout=ANSWER)
        ).count

    async def _longest_wait_s(self) -> float:
        """How long the oldest launching phase waits: each phase is a workflow run of its own."""
        launching = _open_jobs("launching", self.cluster)
        rows = self.client.list_workflows(launching, rpc_timeout=ANSWER)
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
