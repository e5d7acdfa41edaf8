"""The state of a quarantine that was ended by hand: its history still answers queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.heartbeat import heartbeating
from everstep.core.recovering.quarantine import Quarantine

RUNS_MOST = 10
"""Runs that ended before they had read anything are passed by, so many at most."""
ANSWER = timedelta(seconds=3)
ATTEMPTS = 3
"""Jobs wait meanwhile: after so many the quarantine begins with the marks of the cluster."""
UNTOUCHED_EVENTS = 3
"""Of a run that began, had a task for a worker, and was terminated before a worker took it."""

STATE: Any = Quarantine | None
"""The answer of a run; None: it had read nothing yet."""


@activity.defn(name="earlier_quarantine")
async def earlier_quarantine() -> Quarantine:
    """The isolations and counts of the last run of the quarantine that calls; empty where there is none."""
    async with heartbeating():
        caller, client = activity.info(), activity.client()
        workflow_id = caller.workflow_id or ""
        try:
            for run_id in await _earlier_runs(client, workflow_id, caller.workflow_run_id or ""):
                if (state := await _state_of(client, workflow_id, run_id)) is not None:
                    return state
        except (RPCError, WorkflowQueryFailedError) as error:
            if isinstance(error, RPCError) and caller.attempt < ATTEMPTS:
                raise
            activity.logger.warning("the counts of the quarantine begin again: %s", error)
    return Quarantine(cluster="")


async def _earlier_runs(client: Client, workflow_id: str, run_id: str) -> list[str]:
    """The runs before this one, newest first."""
    query = f"WorkflowId = '{workflow_id}'"
    rows = [
        row
        async for row in client.list_workflows(query, limit=RUNS_MOST + 1, rpc_timeout=ANSWER)
        if row.run_id != run_id
    ]
    return [row.run_id for row in sorted(rows, key=lambda row: row.start_time, reverse=True)]


async def _state_of(client: Client, workflow_id: str, run_id: str) -> Quarantine | None:
    """What the run was left with; None if it has nothing to begin with."""
    run = client.get_workflow_handle(workflow_id, run_id=run_id)
    try:
        if (await run.describe(rpc_timeout=ANSWER)).history_length <= UNTOUCHED_EVENTS:
            return None  # a query would wait for a worker's answer in vain
        state: Quarantine | None = await run.query("state", result_type=STATE, rpc_timeout=ANSWER)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # its history is deleted
            raise
        return None
    return state
