"""The counters of all jobs of a cluster, sent to by a signal that starts them if they are not there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from everstep.chronicle.totals import JobReport
from everstep.core import names

TASK_TIMEOUT = timedelta(seconds=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalCounters:
    """Those of one cluster."""

    client: Client
    cluster: str

    async def take(self, report: JobReport) -> None:
        await self.client.start_workflow(
            names.FLEET_TOTALS,
            id=names.totals_id(self.cluster),
            task_queue=names.TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=TASK_TIMEOUT,
            static_summary=f"restarts of all jobs of cluster {self.cluster}, for metrics",
            start_signal="job_totals",
            start_signal_args=[report],
        )
