"""Spares: pods that stand by for whichever slot needs one first. Held against every backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.errors import StaleGeneration
from everstep.core.world import PlaceState
from tests.backends.contract.test_standbys import jobs_by_node, running, stand_by, until_free
from tests.backends.lab import Run, uids_of

SPARE = 2
"""Behind the slots 0 and 1 of the job."""


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
    assert uids_of(await job.look()) == before
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
    assert uids_of(await job.look()) == before


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
