"""News of jobs, for those that wait for some; what came before the wait is not missed."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from everstep.core.world import Observation

PODS_PER_S = 2_000
"""A look goes through all pods of its job, so that the next one comes after a time that grows with them.
While a thousand pods start there is news all the time, and the worker would do nothing but look."""


class JobNews:
    """A count of news for each job, and for all of them together under the name of nothing."""

    def __init__(self) -> None:
        self._came: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        self._event = asyncio.Event()
        self._rests_until: dict[str, float] = {}  # by the clock of the event loop

    def add(self, job_id: str) -> None:
        self._came[job_id] += 1
        self._event.set()
        self._event = asyncio.Event()

    def add_later(self, job_id: str, after_s: float) -> None:
        asyncio.get_running_loop().call_later(max(0.0, after_s), self.add, job_id)

    def _count(self, job_id: str) -> int:
        return self._came[job_id] + self._came[""]

    def is_new(self, job_id: str) -> bool:
        """Whether any came since a look at this job last began."""
        return self._count(job_id) > self._read[job_id]

    @contextmanager
    def reading(self, job_id: str) -> Iterator[None]:
        """What comes from here on is news again, also while the reading goes on."""
        before = self._count(job_id)
        yield
        self._read[job_id] = before

    async def seen(
        self,
        job_id: str,
        look: Callable[[], Awaitable[Observation]],
        *,
        now: Callable[[], float],
        until: float | None,
        wait_s: float,
    ) -> Observation:
        """As `Backend.observe` promises: what a look shows, once that is new or the time is over.

        Where no news came for `wait_s` it is what was seen then: a quiet job is looked at once a call.
        """
        clock = asyncio.get_running_loop().time
        ends = clock() + wait_s

        def left_s() -> float:
            return min(ends - clock(), math.inf if until is None else until - now())

        was_new = False
        while True:
            await asyncio.sleep(min(self._rests_until.get(job_id, 0.0) - clock(), left_s()))
            was_new = was_new or self.is_new(job_id)
            with self.reading(job_id):
                observation = await look()
            self._rests_until[job_id] = clock() + len(observation.pods) / PODS_PER_S
            left = left_s()
            if observation.facts or was_new or left <= 0:
                return observation
            was_new = await self.wait(job_id, left)
            if not was_new and clock() >= ends and (until is None or now() < until):
                return observation

    async def wait(self, job_id: str, within_s: float) -> bool:
        """Until there is news; False if the time is over first."""
        try:
            async with asyncio.timeout(within_s):
                while not self.is_new(job_id):
                    await self._event.wait()
        except TimeoutError:
            return False
        return True
