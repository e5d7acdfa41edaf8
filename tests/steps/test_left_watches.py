"""How long a watch waits for news of the cluster; a cancelled one does not wait."""

from __future__ import annotations

import asyncio
from typing import Any

from everstep.backends.fake.backend import FakeBackend
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.spec import Limits
from everstep.core.world import JobRef
from everstep.simulation import QuarantineInMemory
from everstep.steps.step_run import StepContext
from everstep.steps.watch import watch
from tests.support.patience import HUNG_S


class Quiet(FakeBackend):
    """A cluster without events: a wait for one lasts for ever."""

    def __init__(self, *, shows_first: bool) -> None:
        super().__init__()
        self.shows_first = shows_first
        self.is_called = asyncio.Event()
        self.waits_s = 0.0

    async def call(self, verb: str, /, **args: Any) -> Any:
        if verb == "observe" and args["wait_s"] > 0:
            if not self.shows_first:
                self.waits_s = args["wait_s"]
                self.is_called.set()
                await asyncio.Event().wait()
            self.shows_first, args["wait_s"] = False, 0.0
        return await super().call(verb, **args)


async def left(backend: Quiet, *, time_scale: float = 1.0) -> WatchReport:
    order = WatchOrder(
        job=JobRef(id="job", run="run"),
        cluster="fake",
        generation=0,
        cursor="",
        since=0.0,
        limits=Limits(),
        active=(),
        is_paused=True,
        time_scale=time_scale,
    )
    leave = asyncio.Event()
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    watching = asyncio.create_task(watch(context, order, leave))
    await backend.is_called.wait()
    leave.set()
    return await asyncio.wait_for(watching, HUNG_S)


async def test_a_watch_is_left_at_once_however_long_nothing_happens() -> None:
    assert (await left(Quiet(shows_first=True))).news == "interrupted"


async def test_one_that_has_seen_nothing_yet_looks_before_it_leaves() -> None:
    backend = Quiet(shows_first=False)
    report = await left(backend)
    assert report.news == "interrupted"
    assert report.now == await backend.clock()


async def test_the_only_job_of_a_worker_is_looked_at_more_than_once_a_second() -> None:
    backend = Quiet(shows_first=True)
    await left(backend)
    assert backend.waits_s == 0.75
