"""Wakes the verbs of a backend that wait for news of a job, such as `observe`.

A part of the backend that sees a change calls `add`. News that came before a wait began ends it at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from everstep.core.world import Observation

PODS_PER_S = 2_000
"""A look goes through all pods of its job, so that the next one comes after a time that grows with them.
While a thousand pods start there is news all the time, and the worker would do nothing but look."""

SHORT_WAIT_S = 1.0
"""A wait for news that is not longer ends with a look of its own, if none came."""

FORGET_S = 600.0
"""A job at which nothing looked for so long has ended, or another worker looks at it."""

ALL_JOBS = ""
"""Stands for the ID of a job in news that may concern any of them."""


@dataclass(slots=True)
class JobCounts:
    """The news of one job, and how much of it a look has seen."""

    came: int  # of this job alone
    read: int  # with the news of all jobs, when a look last began
    read_at: float
    rests_until: float = 0.0


class JobNews:
    """A count of news for each job, and one of the news that concern all of them.

    A job is counted from its first look on, and dropped after `FORGET_S` without one: a worker outlives
    thousands of jobs, and receives news of those of other workers too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, JobCounts] = {}
        self._came_for_all = 0
        self._has_any = False
        self._event = asyncio.Event()

    def __len__(self) -> int:
        """The number of jobs that are counted."""
        return len(self._jobs)

    def add(self, job_id: str) -> None:
        """Count news of this job, or of `ALL_JOBS`, and wake those that wait for any."""
        self._has_any = True
        if job_id == ALL_JOBS:
            self._came_for_all += 1
        elif job_id in self._jobs:
            self._jobs[job_id].came += 1
        self._event.set()
        self._event = asyncio.Event()

    def add_later(self, job_id: str, after_s: float) -> None:
        asyncio.get_running_loop().call_later(max(0.0, after_s), self.add, job_id)

    def _counts(self, job_id: str) -> JobCounts:
        """The counts of this job. A job that was not counted yet has news if there ever were any."""
        job = self._jobs.get(job_id)
        if job is None:
            now = self._clock()
            self._jobs = {
                name: one for name, one in self._jobs.items() if one.read_at > now - FORGET_S
            }
            read = self._came_for_all - 1 if self._has_any else self._came_for_all
            job = self._jobs[job_id] = JobCounts(came=0, read=read, read_at=now)
        return job

    def is_new(self, job_id: str) -> bool:
        """Whether the job has news since a look at it last began."""
        job = self._counts(job_id)
        return job.came + self._came_for_all > job.read

    @contextmanager
    def reading(self, job_id: str) -> Iterator[None]:
        """Once the body is done, mark the news that came before it as read."""
        job = self._counts(job_id)
        job.read_at = self._clock()
        before = job.came + self._came_for_all
        yield
        job.read = before

    async def observe(
        self,
        job_id: str,
        look: Callable[[], Awaitable[Observation]],
        *,
        now: Callable[[], float],
        until: float | None,
        wait_s: float,
    ) -> Observation:
        """Implement `Backend.observe`: return what a look shows, once that is new or the time is over.

        Where no news came for `wait_s`, the look from the beginning of the call is returned; where that is
        short, a second one, so that it is not as old: a worker of many jobs waits longer.
        """
        clock = self._clock
        ends = clock() + wait_s

        def left_s() -> float:
            return min(ends - clock(), math.inf if until is None else until - now())

        was_new = False
        while True:
            await asyncio.sleep(min(self._counts(job_id).rests_until - clock(), left_s()))
            was_new = was_new or self.is_new(job_id)
            with self.reading(job_id):
                observation = await look()
            self._counts(job_id).rests_until = clock() + len(observation.pods) / PODS_PER_S
            left = left_s()
            if observation.facts or was_new or left <= 0:
                return observation
            was_new = await self.wait(job_id, left)
            is_quiet = not was_new and clock() >= ends and (until is None or now() < until)
            if is_quiet and wait_s > SHORT_WAIT_S:
                return observation

    async def wait(self, job_id: str, within_s: float) -> bool:
        """Wait until the job has news. False if the time is over first."""
        try:
            async with asyncio.timeout(within_s):
                while not self.is_new(job_id):
                    await self._event.wait()
        except TimeoutError:
            return False
        return True
