"""A Recovery's ID that another workflow has already: of an earlier run of the job, or a foreign one."""

from __future__ import annotations

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.heartbeat import heartbeating
from activities.visibility import visible
from everstep.core import names


@activity.defn(name="end_recovery")
async def end_recovery(workflow_id: str, job: str, plan: str | None = None) -> str:
    """End the Recovery that an earlier run of this job started, and return nothing.

    Any other workflow lives on; its type is returned. `plan`: the key of the plan that needs the ID.
    """
    async with heartbeating(), visible("end_recovery", job, plan):
        client = activity.client()
        try:
            description = await client.get_workflow_handle(workflow_id).describe()
            if description.status is not WorkflowExecutionStatus.RUNNING:
                return ""
            if description.workflow_type != names.RECOVERY or description.parent_id != job:
                return description.workflow_type
            running = client.get_workflow_handle(workflow_id, run_id=description.run_id)
            await running.terminate("a newer run of the job takes its place")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it ended meanwhile
                raise
    return ""
