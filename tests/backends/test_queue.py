"""Who waits for places: a re-issued job before all new ones, and not for ever. On every backend."""

from __future__ import annotations

import asyncio

import pytest

from everstep.core.state import Mode
from everstep.dialects.modelarts.policy import modelarts
from tests.backends.lab import Lab, Run, leave_room_on, left_on, observed
from tests.backends.local_lab import LocalLab
from tests.backends.whole import report, restarts, whole_job

NEVER_ENDS = {"STEPS": "1000000"}
ALL_NODES = (0, 1, 2, 3, 4)


def waiting(lab: Lab, name: str = "important") -> Run:
    return Run(lab, id=name, slots=(0,), devices="all")


async def queue_reason(job: Run, *, priority: int = 0, reissued: bool = False) -> str:
    """Join the queue; returns what the job waits for."""
    await job.new_generation("launch")
    order = job.place_order(priority=priority, reissued=reissued)
    state = await job.backend.ensure_placed(order)
    assert not state.placed
    return state.waiting_for


async def gets_its_place(job: Run) -> None:
    order = job.place_order(priority=9)
    await job.until_done(lambda: job.backend.ensure_placed(order), within_s=1e5)


async def is_placed(job: Run) -> bool:
    return bool((await job.observe_now()).pods)


async def test_what_a_re_issued_job_gives_back_nobody_takes_before_it(lab: Lab) -> None:
    owner = Run(lab, id="owner", slots=ALL_NODES, devices="all")
    await owner.launch()
    important = waiting(lab)
    await queue_reason(important, priority=9)
    waits = asyncio.create_task(gets_its_place(important))
    await owner.new_generation("again")
    await owner.stop()
    await owner.place(reissued=True)
    assert not waits.done()
    await owner.gone()
    await waits


async def test_a_re_issued_job_that_came_last_is_served_before_a_more_important_new_one(
    lab: Lab,
) -> None:
    owner = Run(lab, id="owner", slots=ALL_NODES, devices="all")
    await owner.launch()
    important = waiting(lab)
    await queue_reason(important, priority=9)
    large = Run(lab, id="reissued", slots=ALL_NODES, devices="all")
    await queue_reason(large, reissued=True)
    assert await queue_reason(important, priority=9) == "its turn behind reissued"
    await owner.gone()
    assert await is_placed(large)
    assert not await is_placed(important)


async def test_a_job_that_ends_while_it_waits_lets_the_next_one_through(lab: Lab) -> None:
    owner = Run(lab, id="owner", slots=ALL_NODES, devices="all")
    await owner.launch()
    reissued, important = waiting(lab, "reissued"), waiting(lab)
    await queue_reason(reissued, reissued=True)
    await queue_reason(important, priority=9)
    await reissued.gone()
    assert reissued.ref not in await left_on(lab)
    await owner.gone()
    assert await is_placed(important)


async def test_a_turn_in_the_queue_outlives_the_worker_that_asked_for_it(
    local_lab: LocalLab,
) -> None:
    await leave_room_on(local_lab, 2)
    owner = Run(local_lab, id="owner", slots=(0, 1), devices="all")
    await owner.launch()
    large = Run(local_lab, id="reissued", slots=(0, 1), devices="all")
    important = waiting(local_lab)
    await queue_reason(large, reissued=True)
    await queue_reason(important, priority=9)
    await local_lab.another_worker()
    await owner.gone()
    assert await is_placed(large)
    assert not await is_placed(important)


async def test_a_job_that_can_never_fit_says_so_at_once_and_blocks_no_other(lab: Lab) -> None:
    too_large = Run(lab, id="too-large", slots=(0, 1), devices=99)
    wait = await queue_reason(too_large, reissued=True)
    assert wait.endswith("the job wants 99 devices of 2 nodes: it never fits here)")
    owner = Run(lab, id="owner", slots=ALL_NODES, devices="all")
    async with observed(too_large):
        await owner.launch()
    assert await queue_reason(waiting(lab)) == "room for 1 more pod"
    assert await queue_reason(waiting(lab, "next")) == "its turn behind important"
    assert await queue_reason(too_large, reissued=True) == wait


async def test_a_job_passes_a_new_one_that_only_a_release_lets_start(lab: Lab) -> None:
    for name in ("n3", "n4"):
        await lab.backend.ensure_isolated(name, reason="it smokes")
    large, small = Run(lab, id="large", slots=(0, 1, 2, 3), devices="all"), waiting(lab, "small")
    wait = "room for 1 more pod (n3, n4 are isolated: everstep release n3)"
    assert await queue_reason(large) == wait
    async with observed(large):
        await small.launch()
        await small.gone()
    await lab.backend.ensure_released("n4")
    async with observed(small):
        await large.launch()


# -- A whole job --------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_re_issued_job_without_room_waits_before_new_ones_and_then_ends(lab: Lab) -> None:
    """Only a whole job is issued again by itself, and gives up."""
    requeue_s = 2.0 if isinstance(lab, LocalLab) else 1800.0
    job = whole_job(
        lab,
        modelarts(job_retry=8),
        nodes=5,
        env=NEVER_ENDS,
        limits={"requeue_s": requeue_s, "spare_s": 0.1},
    )
    # Virtual time passes only while every job waits: the job `clock` holds it for this test until it is gone.
    clock, important = Run(lab, id="clock"), waiting(lab)
    await clock.new_generation("clock")
    whole = asyncio.create_task(job.run())
    while job.state.mode is not Mode.WATCHING:
        assert not whole.done(), report(job)
        await clock.observe(until=await lab.backend.clock() + 1.0, wait_s=0.05)
    await queue_reason(important, priority=9)
    began = await lab.backend.clock()
    waits = asyncio.create_task(gets_its_place(important))
    await lab.fault("node-down n1")
    await clock.gone()
    await whole
    assert await lab.backend.clock() - began >= requeue_s
    await waits
    assert report(job)["status"] == "Failed"
    assert f"only 4 of 5 slots found a place within {requeue_s:g}" in report(job)["reason"]
    assert [restart["recover"] for restart in restarts(job)] == ["job_reschedule_with_taint"]
