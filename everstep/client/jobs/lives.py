"""The lives of a job's ID: one for each time that a job was submitted under it, oldest first.

A life is a chain of runs. A run that continues as new, or is reset, goes on in its life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from everstep.client.connection import of_each, unless_denied
from everstep.client.jobs.found_job import FoundJob, look_up
from everstep.core import names

Value = dict[str, Any]

LIVES_LISTED = 20
RUNS_LISTED = 100
"""The newest runs of an ID that are read. A life has several where it was reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One life of an ID, as its newest run shows it. The oldest that is listed is number 1."""

    number: int
    job: FoundJob


async def lives_of(newest: FoundJob) -> list[Life]:
    """The newest lives of the ID of this job, which is in the last one."""
    run_ids = await _other_runs(newest)
    if not run_ids:
        return [Life(number=1, job=newest)]
    other_jobs = await of_each(
        run_ids, lambda run_id: look_up(newest.client, newest.id, run_id=run_id)
    )
    jobs = _newest_of_chains([*filter(None, other_jobs), newest])
    return await _numbered(jobs[-LIVES_LISTED:])


async def lives_known(newest: FoundJob) -> list[Life]:
    """As `lives_of`; the newest life alone where we have no right to list workflows."""
    return await unless_denied(
        lives_of(newest),
        [Life(number=1, job=newest)],
        note="earlier lives of this ID are not shown",
    )


async def lives_since(client: Client, since: str | None) -> list[Life]:
    """The lives of all IDs that are open, or closed since then. The oldest of these of an ID is number 1."""
    runs = (
        f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus != 'ContinuedAsNew' "
        f"AND (CloseTime >= '{since}' OR ExecutionStatus = 'Running')"
    )
    rows = [row async for row in client.list_workflows(runs)]
    by_id: dict[str, list[FoundJob]] = defaultdict(list)
    for job in filter(None, await of_each(rows, partial(_job_of_row, client))):
        by_id[job.id].append(job)
    of_ids = await of_each(by_id.values(), lambda jobs: _numbered(_newest_of_chains(jobs)))
    return [life for of_id in of_ids for life in of_id]


async def _job_of_row(client: Client, row: WorkflowExecution) -> FoundJob | None:
    """The run of this row; the newest run where it continued as new meanwhile. None if deleted."""
    job = await look_up(client, row.id, run_id=row.run_id)
    if job is None or not _is_continued(job):
        return job
    return await look_up(client, row.id)


def _is_continued(job: FoundJob) -> bool:
    return job.description.status is WorkflowExecutionStatus.CONTINUED_AS_NEW


async def _other_runs(newest: FoundJob) -> list[str]:
    """The IDs of the other runs that ended a life or were reset."""
    runs = (
        f"WorkflowId = {names.filter_value(newest.id)} AND WorkflowType = '{names.TRAINING_JOB}' "
        "AND ExecutionStatus != 'ContinuedAsNew'"
    )
    listed = newest.client.list_workflows(runs, limit=RUNS_LISTED)
    run_ids = [row.run_id async for row in listed]
    return [run_id for run_id in run_ids if run_id != newest.description.run_id]


def _newest_of_chains(jobs: Iterable[FoundJob]) -> list[FoundJob]:
    """The newest run of each chain, oldest first.

    A run that continued as new is left out: the server's list lags behind and may still name it.
    """
    by_chain: dict[str, FoundJob] = {}
    for job in sorted(jobs, key=lambda job: job.description.start_time):
        if not _is_continued(job):
            by_chain.pop(job.first_run_id, None)
            by_chain[job.first_run_id] = job
    return list(by_chain.values())


async def _numbered(jobs: Sequence[FoundJob]) -> list[Life]:
    """The jobs of one ID, oldest first, each with its number and the time at which the next one began."""
    ends = [*await of_each(jobs[1:], lambda job: job.began()), None]
    return [
        Life(number=number, job=replace(job, until=until))
        for number, (job, until) in enumerate(zip(jobs, ends, strict=True), 1)
    ]


async def rows_of_lives(
    lives: Sequence[Life], rows_of: Callable[[FoundJob], Awaitable[list[Value]]]
) -> list[Value]:
    """The rows of each life, oldest life first, with its number as `life`."""
    all_rows = await of_each(lives, lambda life: rows_of(life.job))
    return [
        {**row, "life": life.number}
        for life, rows in zip(lives, all_rows, strict=True)
        for row in rows
    ]
