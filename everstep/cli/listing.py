"""The command `list`: every job that the server still shows, the newest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from everstep.cli import pages
from everstep.cli.connection import with_server
from everstep.cli.job import CLOSED
from everstep.cli.output import AsJson, show
from everstep.core import names, views


def list_(as_json: AsJson = False) -> None:
    """Print all jobs, the newest first."""
    show(with_server(listed), pages.jobs, as_json=as_json)


async def listed(client: Client) -> list[dict[str, Any]]:
    """One row per ID: its newest run, begun when the first run of that chain began."""
    runs: dict[str, list[WorkflowExecution]] = defaultdict(list)
    async for run in client.list_workflows(f"WorkflowType = '{names.TRAINING_JOB}'"):
        runs[run.id].append(run)
    found = [await _job(of_one_id) for of_one_id in runs.values()]
    return sorted(found, key=lambda job: str(job["started_at"]), reverse=True)


async def _job(runs: list[WorkflowExecution]) -> dict[str, Any]:
    newest, *earlier = sorted(runs, key=lambda run: run.start_time, reverse=True)
    told = {p.key.name: p.value for p in newest.typed_search_attributes.search_attributes}
    return {
        "id": newest.id,
        "state": _state(newest, told.get("TrainState")),
        "phase": told.get("TrainPhase"),
        "restarts": told.get("Restarts", 0),
        "reschedules": await newest.memo_value("reschedules", 0),
        "started_at": views.moment(_begun(newest, earlier).start_time.timestamp()),
    }


def _begun(newest: WorkflowExecution, earlier: Iterable[WorkflowExecution]) -> WorkflowExecution:
    """The run that the newest one goes on from, back to the one that was submitted."""
    first = newest
    for run in earlier:
        if run.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
            break
        first = run
    return first


def _state(run: WorkflowExecution, told: str | None) -> str:
    """What the job says of itself; once it has closed, only if that is an end."""
    if run.status is None or run.status is WorkflowExecutionStatus.RUNNING:
        return told or "pending"
    if told is not None and told in CLOSED.values():
        return told
    return CLOSED.get(run.status, "running")
