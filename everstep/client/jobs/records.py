"""Rows about a job, oldest first: what happened to it, and its restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from everstep.client.jobs.found_job import FoundJob
from everstep.client.jobs.history import all_records
from everstep.client.jobs.lives import lives_known, rows_of_lives

Value = dict[str, Any]


class Rows(list[Value]):
    """Rows of all lives of an ID, each with its `life`, and how many lives there are."""

    def __init__(self, rows: Iterable[Value], *, lives: int) -> None:
        super().__init__(rows)
        self.lives = lives


async def rows_of_all_lives(
    job: FoundJob, rows_of: Callable[[FoundJob], Awaitable[list[Value]]]
) -> Rows:
    """The rows of all lives of this job's ID."""
    lives = await lives_known(job)
    return Rows(await rows_of_lives(lives, rows_of), lives=len(lives))


async def all_events(job: FoundJob) -> list[Value]:
    """The newest 50, oldest first."""
    events = await job.answer("events")
    if events is not None or job.description.close_time is None:
        return list(events or [])
    reason = await job.failure()
    if reason is None:
        return []
    from everstep.chronicle import happenings  # a tenth of a second, for such a job alone

    return happenings.of_an_end(job.closed_as, reason, job.description.close_time.timestamp())


async def newest_restarts(job: FoundJob) -> list[Value]:
    """The newest 50 records, oldest first; of a job that could leave none, what its Recoveries say."""
    records = await job.answer("restarts")
    return list(records) if records is not None else await all_records(job, newest=[])


async def all_restarts(job: FoundJob) -> list[Value]:
    return await all_records(job, newest=await newest_restarts(job))
