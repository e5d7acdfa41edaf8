"""Who waits for news of a job looks as rarely as possible, and misses nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

from everstep.backends.agents import news
from everstep.backends.agents.news import ALL_JOBS, FORGET_S, PODS_PER_S, JobNews
from everstep.core.world import Observation, PodState, PodView
from tests.support.patience import HUNG_S

LOOKS = 3
MANY = 200


class Looking:
    """Counts its looks at a job without news."""

    def __init__(self, news: JobNews, pods: int = 0) -> None:
        self.news = news
        # How many there are decides; which ones they are does not, and a million takes seconds to make.
        self.pods = (PodView(slot=0, node="n", uid="0", state=PodState.RUNNING),) * pods
        self.looks = 0
        self.looked = asyncio.Event()

    async def look(self) -> Observation:
        self.looks += 1
        self.looked.set()
        return Observation(now=time.monotonic(), cursor="", pods=self.pods)

    async def observe(self, *, until: float | None = None, wait_s: float = HUNG_S) -> Observation:
        observation = self.news.observe(
            "job", self.look, now=time.monotonic, until=until, wait_s=wait_s
        )
        return await asyncio.wait_for(observation, 2 * HUNG_S)


async def test_a_quiet_job_is_looked_at_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "SHORT_WAIT_S", 0.001)
    looking = Looking(JobNews())
    await looking.observe(wait_s=0.01)
    await looking.observe(wait_s=0.01)
    assert looking.looks == 2


async def test_after_a_short_wait_the_job_is_shown_as_it_is_then() -> None:
    looking, ends = Looking(JobNews()), time.monotonic() + 0.01
    assert (await looking.observe(wait_s=0.01)).now >= ends
    assert looking.looks == 2


async def test_what_rings_during_the_wait_is_looked_at() -> None:
    looking = Looking(JobNews())
    waiting = asyncio.create_task(looking.observe())
    await looking.looked.wait()
    looking.news.add("job")
    await waiting
    assert looking.looks == 2


async def test_what_rang_before_is_looked_at_and_returned_at_once() -> None:
    looking = Looking(JobNews())
    looking.news.add(ALL_JOBS)
    await looking.observe()
    assert looking.looks == 1


async def test_at_its_time_the_job_is_looked_at_anew() -> None:
    """The caller judges by the requested time what stands still: that may have moved during the wait."""
    looking = Looking(JobNews())
    until = time.monotonic() + 0.01
    assert (await looking.observe(until=until)).now >= until


async def looks_in_a_row(looking: Looking) -> float:
    """Seconds of so many looks, each for news that was there before."""
    began = time.monotonic()
    for _ in range(LOOKS):
        looking.news.add("job")
        await looking.observe()
    return time.monotonic() - began


async def test_a_job_of_many_pods_is_not_looked_at_all_the_time() -> None:
    rest_s = MANY / PODS_PER_S
    assert await looks_in_a_row(Looking(JobNews(), pods=MANY)) >= (LOOKS - 1) * rest_s


async def test_a_rest_is_no_longer_than_a_caller_waits() -> None:
    looking = Looking(JobNews(), pods=1000 * PODS_PER_S)
    await looking.observe(wait_s=0.0)
    looking.news.add("job")
    await looking.observe(wait_s=0.01)
    await looking.observe(until=time.monotonic() + 0.01)
    assert looking.looks == 3


async def test_what_rings_during_a_rest_is_returned_by_the_look_after_it() -> None:
    looking = Looking(JobNews(), pods=MANY)
    await looking.observe(wait_s=0.0)
    waiting = asyncio.create_task(looking.observe())
    await asyncio.sleep(0)
    assert looking.looks == 1
    looking.news.add("job")
    await waiting
    assert looking.looks == 2


async def test_jobs_that_are_over_are_not_counted_for_ever() -> None:
    """A worker lives for months, and receives news of the jobs of other workers too."""
    now = 0.0
    news = JobNews(lambda: now)
    for number in range(1000):
        with news.reading(f"own-{number}"):
            news.add(f"own-{number}")
            news.add(f"of-another-worker-{number}")
        now += FORGET_S / 10
    assert len(news) <= 11


async def test_news_of_a_job_that_is_not_counted_yet_is_not_missed() -> None:
    looking = Looking(JobNews())
    looking.news.add("job")
    await looking.observe()
    assert looking.looks == 1
