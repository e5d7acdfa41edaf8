"""Pods that stand by: made beside the pods that they will replace. Held against every backend."""

from __future__ import annotations

from everstep.core.world import PlaceState, PodState
from tests.backends.lab import Lab, Run, uids_of
from tests.backends.verbs import NEVER_ENDS


async def running(job: Run) -> dict[int, str]:
    """The uids of a job that trains on two of five nodes."""
    job.env = NEVER_ENDS
    await job.launch()
    return uids_of(await job.step(1))


async def stand_by(job: Run, *slots: int) -> PlaceState:
    order = job.place_order(recreate=slots)
    return await job.until_done(lambda: job.backend.ensure_standby(order))


async def moved(job: Run, *slots: int) -> PlaceState:
    """The job after a restart in which these slots get new pods."""
    await job.new_generation("moved")
    await job.stop()
    places = await job.place(recreate=slots)
    await job.fence()
    await job.start()
    return places


async def jobs_by_node(job: Run) -> dict[str, tuple[str, ...]]:
    return {node.name: node.jobs for node in await job.backend.nodes()}


async def keep_one_free(job: Run) -> str:
    """Isolate all free nodes but one, and return that one."""
    free, *other_nodes = [node for node, jobs in (await jobs_by_node(job)).items() if not jobs]
    for node in other_nodes:
        await job.backend.ensure_isolated(node, reason="broken")
    return free


async def test_a_pod_stands_by_while_all_others_go_on(job: Run) -> None:
    before = await running(job)
    free = await keep_one_free(job)
    places = await stand_by(job, 1)
    assert {slot: ref.node for slot, ref in places.pods.items()} == {1: free}
    assert places.pods[1].uid not in before.values()
    observation = await job.step(3)
    assert uids_of(observation) == before
    assert {pod.state for pod in observation.pods} == {PodState.RUNNING}


async def test_the_same_pod_stands_by_however_often_it_is_asked_for(job: Run) -> None:
    await running(job)
    assert await stand_by(job, 1) == await stand_by(job, 1)


async def test_the_slot_that_is_placed_anew_gets_the_pod_that_stands_by(job: Run) -> None:
    before = await running(job)
    standby = (await stand_by(job, 1)).pods[1]
    places = await moved(job, 1)
    assert places.pods[1] == standby
    assert uids_of(await job.step(1)) == {**before, 1: standby.uid}
    assert await job.place(recreate=(1,)) == places


async def test_a_pod_stands_by_no_more_once_its_slot_is_not_named(job: Run) -> None:
    before = await running(job)
    free = await keep_one_free(job)
    await stand_by(job, 1)
    await stand_by(job)
    await job.see(lambda observation: uids_of(observation) == before)
    await until_free(job, free)
    assert {ref.node for ref in (await stand_by(job, 1)).pods.values()} == {free}


async def test_a_start_ends_the_pods_that_still_stand_by(job: Run) -> None:
    before = await running(job)
    free = await keep_one_free(job)
    await stand_by(job, 1)
    await job.again("in place")
    await until_free(job, free)
    assert uids_of(await job.observe_now()) == before


async def until_free(job: Run, node: str) -> None:
    ends = await job.backend.clock() + 60.0
    while (await jobs_by_node(job))[node]:
        observation = await job.observe(until=await job.backend.clock() + 0.5, wait_s=0.2)
        assert observation.now < ends, f"{node} is still in use"


async def test_no_pod_stands_by_where_there_is_no_room(job: Run) -> None:
    await running(job)
    await job.backend.ensure_isolated(await keep_one_free(job), reason="broken")
    state = await job.backend.ensure_standby(job.place_order(recreate=(1,)))
    assert not state.placed
    assert state.waiting_for
    assert state.pods == {}


async def test_a_pod_on_a_node_that_is_isolated_stands_by_no_more(job: Run) -> None:
    await running(job)
    await keep_one_free(job)
    standby = (await stand_by(job, 1)).pods[1]
    await job.backend.ensure_isolated(standby.node, reason="broken")
    state = await job.backend.ensure_standby(job.place_order(recreate=(1,)))
    assert not state.placed
    await job.backend.ensure_released(standby.node)
    assert (await stand_by(job, 1)).pods[1].uid != standby.uid


async def test_a_slot_does_not_get_a_pod_whose_node_was_isolated(job: Run) -> None:
    await running(job)
    standby = (await stand_by(job, 1)).pods[1]
    await job.backend.ensure_isolated(standby.node, reason="broken")
    places = await moved(job, 1)
    assert places.pods[1].node != standby.node


async def test_a_pod_whose_node_is_lost_stands_by_no_more(job: Run) -> None:
    await running(job)
    await keep_one_free(job)
    standby = (await stand_by(job, 1)).pods[1]
    await job.lab.fault(f"node-down {standby.node}")
    state = await job.backend.ensure_standby(job.place_order(recreate=(1,)))
    assert not state.placed
    assert not [fact for fact in (await job.observe_now()).facts if fact.node == standby.node]


async def test_nothing_stands_by_once_the_job_is_gone(job: Run) -> None:
    await running(job)
    await stand_by(job, 1)
    await job.gone()
    assert not any((await jobs_by_node(job)).values())
    assert await job.backend.leftovers() == ()


async def test_a_job_that_waits_for_places_comes_before_a_pod_that_stands_by(lab: Lab) -> None:
    first, second = Run(lab, slots=(0, 1)), Run(lab, id="second", slots=(0, 1, 2, 3))
    first.env = NEVER_ENDS
    await first.launch()
    await second.new_generation("launch")
    await second.backend.ensure_placed(second.place_order(accelerators_per_node=8))
    assert not (await first.backend.ensure_standby(first.place_order(recreate=(1,)))).placed
