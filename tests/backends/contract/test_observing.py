"""What `observe` returns, and when; nodes; an unreachable cluster. Run against every backend."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from everstep.core.errors import BackendUnavailable
from everstep.core.world import Observation, PodState
from tests.backends.lab import Lab, Run
from tests.backends.verbs import NEVER_ENDS, VERBS
from tests.support.patience import HUNG_S


async def test_the_end_of_a_rank_is_told_with_its_place_and_cause(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("kill demo 1 signal 9")
    fact = await job.fact("process.exit")
    assert (fact.rank, fact.slot, fact.node) == (1, 1, (await job.pod(1)).node)
    assert (fact.generation, fact.details["signal"]) == (job.generation, 9)
    assert [str(one.exit) for one in (await job.pod(1)).exits] == ["signal 9"]


async def test_the_same_cursor_brings_the_same_facts_in_the_same_order(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("kill demo 0 exit 7")
    await job.lab.fault("device n1 0 80E01801 heals")
    await job.lab.fault("kill demo 1 exit 8")
    observation = await job.see(lambda _: len(job.facts) >= 3)
    first = await job.backend.observe(job.ref, cursor="")
    second = await job.backend.observe(job.ref, cursor="")
    assert first.facts == second.facts
    assert [fact.id for fact in first.facts] == [fact.id for fact in job.facts]
    assert len({fact.id for fact in first.facts}) == 3
    assert (await job.backend.observe(job.ref, cursor=observation.cursor, wait_s=0.1)).facts == ()


async def test_observe_returns_when_its_time_has_come(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.step(1)
    until = await job.backend.clock() + 1.0
    looks = [await job.observe(until=until, wait_s=30)]
    while looks[-1].now < until:  # a bell may still ring for what was seen already
        looks.append(await job.observe(until=until, wait_s=30))
    assert looks[-1].now < until + 20.0
    assert len(looks) <= 20, "each of them rings the next"


async def test_observe_returns_after_its_wait_when_nothing_changes(lab: Lab) -> None:
    idle = Run(lab)
    await idle.new_generation("launch")
    observation = await idle.observe(wait_s=0.05)
    again = await asyncio.wait_for(idle.observe(wait_s=0.05), HUNG_S)
    assert replace(again, now=observation.now) == observation


async def test_observe_wakes_when_something_changes(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.step(1)
    await job.lab.fault("hang demo 0")  # once the last step is reported nothing happens by itself
    await job.quiet()
    open_call = await waiting_call(job)
    await job.lab.fault("kill demo 1 exit 3")
    async with asyncio.timeout(20):
        while not (woken := await open_call).facts:
            open_call = asyncio.ensure_future(job.observe(wait_s=30))
    assert [fact.rank for fact in woken.facts] == [1]


async def waiting_call(job: Run) -> asyncio.Future[Observation]:
    """A call that stays open: nothing happens to the job.

    In a cluster that others use too, a node that comes or goes may end a call early: it is news to all jobs.
    """
    async with asyncio.timeout(HUNG_S):
        while True:
            open_call = asyncio.ensure_future(job.observe(wait_s=30))
            await asyncio.sleep(0.05)
            if not open_call.done():
                return open_call
            assert not (await open_call).facts


async def test_the_clock_never_goes_back(job: Run) -> None:
    job.env = {"STEPS": "20"}
    times = [await job.backend.clock()]
    await job.launch()
    for _ in range(5):
        observation = await job.observe(until=await job.backend.clock() + 2.0, wait_s=5)
        times += [observation.now, await job.backend.clock()]
    assert times == sorted(times)


async def test_a_silent_slot_is_shown_as_last_heard_of(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.step(2)
    await job.lab.fault("node-down n1 partition")
    fact = await job.fact("node.not_ready")
    assert fact.details["proven"] is False
    pod = await job.pod(1)
    assert pod.state is PodState.UNREACHABLE
    assert pod.silent_since is not None
    assert pod.generation == job.generation


async def test_a_lost_node_is_told_and_shown(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("node-down n1")
    fact = await job.fact("node.down")
    assert (fact.node, fact.generation, fact.details["proven"]) == ("n1", 0, True)
    assert (await job.pod(1)).state is PodState.LOST
    lost = next(node for node in await job.backend.nodes() if node.name == "n1")
    assert not lost.ready


async def test_nodes_are_all_there_in_a_stable_order(job: Run) -> None:
    names = [node.name for node in await job.backend.nodes()]
    await job.backend.ensure_isolated("n1", reason="broken")
    await job.lab.fault("node-down n3")
    nodes = await job.backend.nodes()
    assert [node.name for node in nodes] == names
    states = {node.name: (node.ready, node.isolated) for node in nodes}
    assert (states["n1"], states["n3"]) == ((True, True), (False, False))


async def test_a_cluster_out_of_reach_is_said_to_be_unavailable(
    job: Run, subtests: pytest.Subtests
) -> None:
    await job.launch()
    await job.lab.unavailable(True)
    for verb, call in VERBS.items():
        with subtests.test(verb), pytest.raises(BackendUnavailable):
            await call(job)
    await job.lab.unavailable(False)
    assert {pod.generation for pod in (await job.observe_now()).pods} == {job.generation}


async def test_asking_again_in_vain_wakes_nobody(lab: Lab) -> None:
    big = Run(lab, slots=tuple(range(6)))
    await big.new_generation("launch")
    await big.backend.ensure_placed(big.place_order())
    await big.observe(wait_s=0.1)
    cursor = big.cursor
    for _ in range(3):
        await big.backend.ensure_placed(big.place_order())
        await big.backend.ensure_stopped(big.stop_order())
    assert (await big.observe(wait_s=0.1)).cursor == cursor
