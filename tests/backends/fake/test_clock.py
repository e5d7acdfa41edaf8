"""When virtual time passes on the fake cluster, and when it stands still."""

from __future__ import annotations

import asyncio
import time

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.core.errors import BackendUnavailable
from tests.backends.conftest import FakeLab, FakeRun
from tests.backends.lab import Run

LONG = {"STEPS": "100000", "CHECKPOINT_EVERY": "0"}


async def elapsed(run: Run) -> float:
    return round(await run.backend.clock() - EPOCH, 6)


async def test_the_clock_begins_with_the_year_2026(fake: FakeBackend) -> None:
    assert time.gmtime(await fake.clock())[:6] == (2026, 1, 1, 0, 0, 0)


async def test_verbs_take_no_time(demo: FakeRun) -> None:
    await demo.new_generation("launch")
    for _ in range(3):
        await demo.backend.ensure_placed(demo.place_order())
        await demo.backend.ensure_stopped(demo.stop_order())
        await demo.backend.check(demo.ref)
    assert await elapsed(demo) == 0


async def test_a_launch_takes_what_its_parts_take(demo: FakeRun) -> None:
    await demo.new_generation("launch")
    await demo.place()
    assert await elapsed(demo) == 2  # pods
    await demo.precheck()
    assert await elapsed(demo) == 3  # checks
    await demo.fence()
    assert await elapsed(demo) == 3
    await demo.start()
    assert await elapsed(demo) == 5  # ranks
    await demo.step(1)
    assert await elapsed(demo) == 6  # warm-up


async def test_the_clock_jumps_to_what_happens_next(demo: FakeRun) -> None:
    demo.env = {"STEPS": "100", "STEP_S": "3600"}
    await demo.launch()
    await demo.see(lambda observation: all(pod.is_done for pod in observation.pods), within_s=1e9)
    assert await elapsed(demo) == 2 + 2 + 1 + 99 * 3600


async def test_the_clock_stops_at_the_smallest_time_that_somebody_waits_for(
    fake_lab: FakeLab,
) -> None:
    one, two = Run(fake_lab, id="one"), Run(fake_lab, id="two")
    await one.new_generation("a")
    await two.new_generation("a")
    one.cursor = two.cursor = "1"
    later = asyncio.ensure_future(one.observe(until=EPOCH + 50))
    sooner = asyncio.ensure_future(two.observe(until=EPOCH + 20))
    assert (await sooner).now == EPOCH + 20
    assert not later.done()
    assert (await two.observe(until=EPOCH + 90, wait_s=0.01)).now == EPOCH + 50
    assert (await later).now == EPOCH + 50


async def test_a_job_that_does_not_wait_holds_the_clock_for_everybody(fake_lab: FakeLab) -> None:
    busy, waiting = Run(fake_lab, id="busy"), Run(fake_lab, id="waiting")
    await busy.new_generation("a")
    await waiting.new_generation("a")
    waiting.cursor = "1"
    assert (await waiting.observe(until=EPOCH + 10, wait_s=0.02)).now == EPOCH
    await busy.gone()  # who is gone holds nothing
    assert (await waiting.observe(until=EPOCH + 10)).now == EPOCH + 10


async def test_a_job_nobody_drives_lets_go_after_a_while(fake_lab: FakeLab) -> None:
    real = [0.0]
    lab = FakeLab(FakeBackend(FakeSettings(idle_s=60), monotonic=lambda: real[0]))
    dead, alive = Run(lab, id="dead"), Run(lab, id="alive")
    await dead.new_generation("a")
    await alive.new_generation("a")
    alive.cursor = "1"
    real[0] = 59.0
    assert (await alive.observe(until=EPOCH + 10, wait_s=0.02)).now == EPOCH
    real[0] = 61.0
    assert (await alive.observe(until=EPOCH + 10, wait_s=0.02)).now == EPOCH + 10


async def test_the_clock_stands_still_when_the_one_who_waited_is_dead(fake_lab: FakeLab) -> None:
    demo, other = Run(fake_lab, id="demo"), Run(fake_lab, id="other")
    await demo.new_generation("a")
    await other.new_generation("a")
    demo.cursor = other.cursor = "1"
    killed = asyncio.ensure_future(demo.observe(until=EPOCH + 10, wait_s=30))
    await asyncio.sleep(0.01)
    killed.cancel()
    await asyncio.wait([killed])
    assert (await other.observe(until=EPOCH + 5, wait_s=0.02)).now == EPOCH


async def test_an_answer_that_was_lost_is_given_again_and_time_has_not_moved(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.step(1)
    await demo.fault("in 7s kill demo 1")
    await demo.admin.fail("observe", when="after")
    with pytest.raises(BackendUnavailable):
        await demo.observe()
    lost_at = await elapsed(demo)
    assert [fact.rank for fact in (await demo.observe()).facts] == [1]
    assert await elapsed(demo) == lost_at == 12


async def test_what_an_order_changed_is_no_news_to_who_knew_the_job_before(demo: FakeRun) -> None:
    await demo.new_generation("launch")
    await demo.place()
    before = await demo.observe(until=0.0)
    assert not (await demo.backend.ensure_started(demo.start_order())).done
    observation = await demo.observe()  # not at once, but when the ranks have started
    assert (observation.now - before.now, {pod.run.started_at for pod in observation.pods}) == (
        2,
        {observation.now},
    )


async def test_what_an_order_changed_is_told_along_with_what_was_not_known(demo: FakeRun) -> None:
    await demo.new_generation("launch")
    await demo.place()
    before = await demo.observe(until=0.0)
    await demo.fault("silence n0")
    await demo.backend.ensure_started(demo.start_order())
    observation = await demo.observe()
    assert (observation.now, observation.pods[0].silent_since) == (before.now, before.now)


async def test_who_does_not_care_about_cursors_still_lets_time_pass(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.fault("slow-teardown n1 30")
    began = await demo.backend.clock()
    while not (await demo.backend.ensure_gone(demo.ref)).done:
        await demo.backend.observe(demo.ref, cursor=demo.cursor)
    assert await demo.backend.clock() == began + 30


async def test_who_asks_for_the_same_facts_for_ever_is_told_so(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.fault("kill demo 1")

    async def forever() -> None:
        while True:
            await demo.backend.observe(demo.ref, cursor=demo.cursor)

    with pytest.raises(RuntimeError, match="it should pass the one of the last observation"):
        await forever()


async def test_with_nothing_to_come_observe_waits_real_time_only(demo: FakeRun) -> None:
    await demo.new_generation("a")
    demo.cursor = "1"
    began = time.monotonic()
    observation = await demo.observe(wait_s=0.05)
    assert time.monotonic() - began >= 0.05
    assert (observation.now, observation.cursor) == (EPOCH, "1")


async def test_time_can_be_passed_by_force(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.fault("in 10s kill demo 0")
    await demo.fault("in 5s device n1 0 80E01801")
    before = await demo.backend.clock()
    assert await demo.admin.advance(60) == before + 60
    fact_times = [(fact.kind, fact.at - before) for fact in (await demo.observe_now()).facts]
    assert fact_times == [("device.fault", 5), ("process.exit", 10)]


async def test_what_happens_at_one_moment_is_seen_at_once(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    for rank in range(4):
        await demo.fault(f"at 30s kill demo {rank} exit 1")
    await demo.fact("process.exit")
    assert [fact.rank for fact in demo.facts] == [0, 1, 2, 3]


async def test_cursors_go_on_when_the_job_begins_again(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.fault("kill demo 0")
    await demo.fact("process.exit")
    cursor = demo.cursor
    await demo.gone()
    later = Run(demo.lab, run="run-2", env=LONG, cursor=cursor)
    await later.launch()
    await later.lab.fault("kill demo 0")
    assert (await later.fact("process.exit")).generation == later.generation
    assert later.cursor > cursor


async def test_a_thousand_looks_take_well_below_a_second_of_real_time(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    began = time.process_time()
    for _ in range(1000):
        await demo.observe(until=await demo.backend.clock() + 1.0)
    assert time.process_time() - began < 2.0  # usually 0.1
