"""Who waits for news of a job looks as rarely as possible, and misses nothing."""

from __future__ import annotations

import asyncio
import time

from everstep.agent_client.news import JobNews
from everstep.core.world import Observation
from tests.support.patience import HUNG_S


class Looking:
    """Counts its looks at a job of which nothing is told."""

    def __init__(self, heard: JobNews) -> None:
        self.heard = heard
        self.looks = 0
        self.looked = asyncio.Event()

    async def look(self) -> Observation:
        self.looks += 1
        self.looked.set()
        return Observation(now=time.monotonic(), cursor="")

    async def news(self, *, until: float | None = None, wait_s: float = HUNG_S) -> Observation:
        seen = self.heard.seen("job", self.look, now=time.monotonic, until=until, wait_s=wait_s)
        return await asyncio.wait_for(seen, 2 * HUNG_S)


async def test_a_quiet_job_is_looked_at_once_a_call() -> None:
    looking = Looking(JobNews())
    await looking.news(wait_s=0.01)
    await looking.news(wait_s=0.01)
    assert looking.looks == 2


async def test_what_rings_during_the_wait_is_looked_at() -> None:
    looking = Looking(JobNews())
    waiting = asyncio.create_task(looking.news())
    await looking.looked.wait()
    looking.heard.add("job")
    await waiting
    assert looking.looks == 2


async def test_what_rang_before_is_looked_at_and_returned_at_once() -> None:
    looking = Looking(JobNews())
    looking.heard.add("")
    await looking.news()
    assert looking.looks == 1


async def test_at_its_time_the_job_is_looked_at_anew() -> None:
    """Who asked for a time judges by it what stands still: that may have moved while we waited."""
    looking = Looking(JobNews())
    until = time.monotonic() + 0.01
    assert (await looking.news(until=until)).now >= until
