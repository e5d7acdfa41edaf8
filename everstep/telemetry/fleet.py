"""What the server knows of all jobs and of the isolated nodes, read every few seconds for the gauges."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

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

logger = logging.getLogger("everstep.telemetry")


@dataclass(slots=True)
class Fleet:
    """The newest values; those that could not be read stay as they were."""

    client: Client
    cluster: str
    jobs: Mapping[str, int] = field(default_factory=dict)
    isolated: int | None = None  # None: no quarantine answered yet
    longest_s: float = 0.0

    async def read(self) -> None:
        try:
            self.jobs = {state: await self._count(state) for state in OPEN_STATES}
            await self._read_isolated()
        except (
            RPCError,
            WorkflowQueryFailedError,
        ) as error:  # the server, or the only worker, is away
            logger.info("the values of the fleet are as old as the last answer: %s", error.message)

    async def _count(self, state: str) -> int:
        some = (
            f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus = 'Running' "
            f"AND TrainState = '{state}'"
        )
        return (await self.client.count_workflows(some, rpc_timeout=ANSWER)).count

    async def _read_isolated(self) -> None:
        """A cluster without a quarantine has isolated nothing yet."""
        quarantine = self.client.get_workflow_handle(names.quarantine_id(self.cluster))
        rows: list[dict[str, object]] = []
        try:
            rows = await quarantine.query("nodes", rpc_timeout=ANSWER)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        isolated = [row for row in rows if row["state"] == "isolated"]
        began = [seconds(str(row["since"])) or 0.0 for row in isolated if row["since"]]
        self.isolated = len(isolated)
        self.longest_s = max(time.time() - min(began), 0.0) if began else 0.0
