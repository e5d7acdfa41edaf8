"""Reads from Temporal's histories which Recoveries a job has started in all its runs, and what got stuck."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHistory,
)

from everstep.core import names
from everstep.core.deciding.decision import Decision
from tests.chaos.evidence import BUDGET_NAME, Recovery
from tests.replay import joined
from tests.support.playing.on_processes import decisions_in

KEY = re.compile(r"/recovery-\d+(?:~\d+)?-(?P<level>[a-z_]+)-(?P<cls>[a-z_]+)")
"""The part of a Recovery's ID that names the restart."""

CODE_FAILURES = frozenset(
    {
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
    }
)
"""Why a workflow task fails at every attempt, because of workflow code."""

JOINED_MOST = 15
"""Tasks of a run that are joined with the next one, in a replay of the run for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All of one job that histories hold."""

    recoveries: Sequence[Recovery]
    stuck: Sequence[str]  # with these:
    failed_tasks: Sequence[str]


async def story(client: Client, job: str) -> Story:
    """Read the histories of a job, which has ended if all went well."""
    runs = {run: await _events(client, job, run) for run in await _runs(client, job)}
    last = (await client.get_workflow_handle(job).describe()).run_id
    started_by = {run: await _started(events) for run, events in runs.items()}
    started = {child: one for by_child in started_by.values() for child, one in by_child.items()}
    in_chain = {child for run in _chain(runs, last) for child in started_by.get(run, {})}
    recoveries = [
        replace(
            recovery,
            is_in_last_run=child in in_chain,
            is_cut_short=await _is_cut_short(client, recovery.id, child),
        )
        for child, recovery in started.items()
    ]
    failed_tasks = [line for events in runs.values() for line in _failed_tasks(job, events)]
    failed_tasks += [
        line for events in runs.values() for line in await _failed_replays(job, events)
    ]
    return Story(
        recoveries=sorted(recoveries, key=lambda one: one.at),
        failed_tasks=failed_tasks,
        stuck=[
            *failed_tasks,
            *[
                f"{recovery.id} outlives its job"
                for child, recovery in started.items()
                if await _status(client, recovery.id, child) is WorkflowExecutionStatus.RUNNING
            ],
        ],
    )


async def _runs(client: Client, job: str) -> list[str]:
    """Every run of the ID, once the list of the server, which lags behind, has the last one."""
    last = (await client.get_workflow_handle(job).describe()).run_id
    async with asyncio.timeout(30):
        while True:
            rows = client.list_workflows(f"WorkflowId = '{job}'")
            runs = [row.run_id async for row in rows]
            if last in runs:
                return runs
            await asyncio.sleep(0.1)


async def _events(client: Client, job: str, run: str) -> list[HistoryEvent]:
    handle = client.get_workflow_handle(job, run_id=run)
    return [event async for event in handle.fetch_history_events()]


def _chain(runs: dict[str, list[HistoryEvent]], last: str) -> list[str]:
    """The last run and those that it continues, back to the start of this life of the job."""
    chain = [last]
    while chain[-1] in runs:
        started = runs[chain[-1]][0].workflow_execution_started_event_attributes
        if not started.continued_execution_run_id:
            break
        chain.append(started.continued_execution_run_id)
    return chain


async def _started(events: Sequence[HistoryEvent]) -> dict[str, Recovery]:
    """The Recoveries by their run: a reset copies the events before it."""
    recoveries = {}
    decision: Decision | None = None
    for event in events:
        if event.HasField("marker_recorded_event_attributes"):
            decisions = await decisions_in(event.marker_recorded_event_attributes)
            decision = decisions[-1] if decisions else decision
        child = event.child_workflow_execution_started_event_attributes.workflow_execution
        if decision is None or not (key := KEY.search(child.workflow_id)):
            continue
        recoveries[child.run_id] = Recovery(
            id=child.workflow_id,
            at=event.event_time.ToNanoseconds() / 1e9,
            level=key["level"],
            cls=key["cls"],
            opens_incident=decision.new_incident,
            is_repeat=decision.repeats is not None,
            billed=decision.bills.get(BUDGET_NAME, 0),
        )
    return recoveries


def _failed_tasks(job: str, events: Sequence[HistoryEvent]) -> list[str]:
    failures = [event.workflow_task_failed_event_attributes for event in events]
    return [
        f"a workflow task of {job} failed: {one.failure.message[:200]}"
        for one in failures
        if one.cause in CODE_FAILURES
    ]


async def _failed_replays(job: str, events: Sequence[HistoryEvent]) -> list[str]:
    """Where the job would be stuck, had a worker begun from its history that joins two tasks of it."""
    failures = await joined.failures(WorkflowHistory(job, events), most=JOINED_MOST)
    return [
        f"a replay of {job}{f', task {n} joined with the next' if n >= 0 else ''}: {why[:200]}"
        for n, why in failures.items()
    ]


async def _is_cut_short(client: Client, workflow: str, run: str) -> bool:
    """Whether it ended without an outcome, or gave way. A level that failed says so in its failure."""
    handle = client.get_workflow_handle(workflow, run_id=run)
    if await _status(client, workflow, run) is WorkflowExecutionStatus.RUNNING:
        return False
    try:
        outcome = await handle.result()
    except WorkflowFailureError as error:
        return getattr(error.cause, "type", None) != names.RECOVERY_FAILED
    return bool(outcome["result"] == "superseded")


async def _status(client: Client, workflow: str, run: str) -> WorkflowExecutionStatus:
    status = (await client.get_workflow_handle(workflow, run_id=run).describe()).status
    assert status is not None
    return status
