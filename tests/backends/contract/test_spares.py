"""Spares: pods that stand by for whichever slot needs one first. Held against every backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.errors import StaleGeneration
from everstep.core.world import PlaceState
from tests.backends.contract.test_standbys import jobs_by_node, running, stand_by, until_free
from tests.backends.lab import Lab, Run, observed, uids_of
from tests.backends.verbs import NEVER_ENDS

SPARE = 2
"""The number behind the slots 0 and 1 of the job."""


async def spare(job: Run) -> PlaceState:
    return await stand_by(job, SPARE)


async def moved(job: Run, *slots: int, avoid: tuple[str, ...] = ()) -> PlaceState:
    """The job after a restart in which these slots get other pods, and which keeps its spare."""
    await job.new_generation("moved")
    await job.stop()
    order = job.place_order(recreate=slots, spares=(SPARE,), avoid=avoid)
    places = await job.until_done(lambda: job.backend.ensure_placed(order))
    await job.fence()
    start = job.start_order(spares=(SPARE,))
    await job.until_done(lambda: job.backend.ensure_started(start))
    return places


async def test_a_spare_takes_the_place_of_whichever_pod_is_lost(job: Run) -> None:
    before = await running(job)
    ready = await spare(job)
    assert uids_of(await job.observe_now()) == before
    places = await moved(job, 0)
    assert places.pods[0] == ready.pods[SPARE]
    assert places.stood_up_s.keys() == {0}
    assert places.stood_up_s[0] > 0
    order = job.place_order(recreate=(0,), spares=(SPARE,))
    assert await job.backend.ensure_placed(order) == places, "the same generation, the same pods"
    assert uids_of(await job.step(1)) == {**before, 0: ready.pods[SPARE].uid}
    another = await spare(job)
    assert another.pods[SPARE].uid not in {*before.values(), ready.pods[SPARE].uid}


async def test_a_spare_goes_on_standing_by_over_a_start_that_needs_no_pod(job: Run) -> None:
    await running(job)
    ready = await spare(job)
    places = await moved(job)
    assert not places.stood_up_s
    assert await spare(job) == ready


async def test_a_spare_on_a_node_to_avoid_is_not_taken(job: Run) -> None:
    await running(job)
    ready = (await spare(job)).pods[SPARE]
    places = await moved(job, 1, avoid=(ready.node,))
    assert places.pods[1].node != ready.node
    assert not places.stood_up_s
    await until_free(job, ready.node)


async def test_a_pod_that_is_to_stand_by_for_a_slot_is_a_spare_where_there_is_one(job: Run) -> None:
    await running(job)
    ready = (await spare(job)).pods[SPARE]
    order = job.place_order(recreate=(1,), spares=(SPARE,))
    state = await job.until_done(lambda: job.backend.ensure_standby(order))
    assert state.pods == {1: ready}
    assert (await moved(job, 1)).pods[1] == ready


async def test_a_spare_is_checked_before_anything_breaks(job: Run) -> None:
    await running(job)
    ready = (await spare(job)).pods[SPARE]
    await job.lab.fault(f"precheck {ready.node} dns")
    order = replace(job.precheck_order(), slots=(SPARE,))
    state = await job.until_done(lambda: job.backend.ensure_prechecked(order))
    assert [(fact.kind, fact.node) for fact in state.failures] == [("precheck.dns", ready.node)]


async def test_no_spare_stands_by_once_none_is_named(job: Run) -> None:
    before = await running(job)
    node = (await spare(job)).pods[SPARE].node
    await stand_by(job)
    await until_free(job, node)
    assert uids_of(await job.observe_now()) == before


async def test_no_spare_is_left_of_a_job_that_is_gone(job: Run) -> None:
    await running(job)
    await spare(job)
    await job.gone()
    assert not any((await jobs_by_node(job)).values())


async def test_a_late_worker_makes_no_spare(job: Run) -> None:
    await running(job)
    late = job.place_order(recreate=(SPARE,))
    await job.new_generation("newer")
    with pytest.raises(StaleGeneration):
        await job.backend.ensure_standby(late)


async def fill_all_but_one(lab: Lab) -> tuple[Run, Run]:
    """A job with a spare, and another one, on a cluster that has no further room."""
    spared, other = Run(lab, slots=(0, 1), env=NEVER_ENDS), Run(lab, id="other", slots=(0, 1))
    other.env = NEVER_ENDS
    spared.devices = other.devices = 8
    await spared.launch()
    async with observed(spared):
        await other.launch()
    async with observed(other):
        await spare(spared)
    return spared, other


async def test_a_spare_gives_way_to_a_restarted_job_that_has_no_other_place(lab: Lab) -> None:
    spared, other = await fill_all_but_one(lab)
    lost = (await other.pod(0)).node
    await lab.backend.ensure_isolated(lost, reason="broken")
    async with observed(spared):
        await other.new_generation("moved")
        await other.stop()
        order = other.place_order(recreate=(0,), reissued=True, avoid=(lost,))
        await other.until_done(lambda: lab.backend.ensure_placed(order))
    state = await lab.backend.ensure_standby(spared.place_order(recreate=(SPARE,)))
    assert not state.placed, "there is no other room"
    assert {pod.slot for pod in (await spared.observe_now()).pods} == {0, 1}


async def test_a_new_job_waits_beside_a_spare(lab: Lab) -> None:
    spared, _ = await fill_all_but_one(lab)
    new = Run(lab, id="new", slots=(0,), devices=8)
    await new.new_generation("launch")
    assert not (await lab.backend.ensure_placed(new.place_order())).placed
    assert (await spare(spared)).placed
