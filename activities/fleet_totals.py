"""The counters of all jobs of a cluster, sent to by a signal that starts them if they are not there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from everstep.chronicle.fleet_totals import JobReport
from everstep.core import names

TASK_TIMEOUT = timedelta(seconds=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalCounters:
    """Those of one cluster."""

    client: Client
    cluster: str

    async def take(self, report: JobReport) -> str:
        workflow_id = names.totals_id(self.cluster)
        if (kind := await self._running_type(workflow_id)) not in (None, names.FLEET_TOTALS):
            return (
                f"{workflow_id} is a {kind}, not the totals of cluster {self.cluster}: its restarts are not "
                f"counted; `temporal workflow terminate --workflow-id {workflow_id}` lets the totals begin"
            )
        await self.client.start_workflow(
            names.FLEET_TOTALS,
            id=workflow_id,
            task_queue=names.TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=TASK_TIMEOUT,
            static_summary=f"restarts of all jobs of cluster {self.cluster}, for metrics",
            start_signal="job_totals",
            start_signal_args=[report],
        )
        return ""

    async def _running_type(self, workflow_id: str) -> str | None:
        """The type of the running workflow with this ID; None where there is none."""
        try:
            description = await self.client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        return (
            description.workflow_type
            if description.status is WorkflowExecutionStatus.RUNNING
            else None
        )
