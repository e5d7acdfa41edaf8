"""Who gets which place on the fake cluster, what is refused, and what the effects log shows."""

from __future__ import annotations

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.errors import StaleGeneration
from everstep.core.waits import WaitKind
from everstep.core.world import GoneState, PodRef
from tests.backends.conftest import FakeLab, FakeRun
from tests.backends.lab import left_on, nodes_of, observed

LONG = {"STEPS": "100000"}


async def what(job: FakeRun) -> list[str]:
    return [effect.what for effect in await job.admin.effects()]


async def test_slots_take_the_first_nodes_in_order(demo: FakeRun) -> None:
    await demo.new_generation("launch")
    places = await demo.place()
    assert places.pods[0] == PodRef(node="n0", uid="demo-0-g1")
    assert [places.pods[slot].node for slot in demo.slots] == ["n0", "n1", "n2", "n3"]


async def test_nodes_are_ordered_by_number_not_by_letters() -> None:
    job = FakeRun(FakeLab(FakeBackend(FakeSettings(nodes=12))), slots=tuple(range(12)))
    await job.new_generation("launch")
    places = await job.place()
    assert [ref.node for _, ref in sorted(places.pods.items())] == [f"n{i}" for i in range(12)]


async def test_a_node_has_one_place_for_pods_without_devices(fake_lab: FakeLab) -> None:
    first = FakeRun(fake_lab, id="first", devices=0, slots=(0, 1))
    second = FakeRun(fake_lab, id="second", devices=0, slots=(0, 1))
    for job in (first, second):
        await job.new_generation("launch")
        await job.backend.ensure_placed(job.place_order())
    assert {n.name: n.jobs for n in await fake_lab.backend.nodes()} == {
        "n0": ("first",),
        "n1": ("first",),
        "n2": ("second",),
        "n3": ("second",),
        "n4": (),
    }


async def test_jobs_share_the_devices_of_a_node(fake_lab: FakeLab) -> None:
    for name, node_count in (("one", 3), ("two", 4)):
        job = FakeRun(fake_lab, id=name, devices=node_count, slots=(0,))
        await job.new_generation("launch")
        await job.backend.ensure_placed(job.place_order())
    held = [device.job for device in (await fake_lab.backend.nodes())[0].devices]
    assert held == ["one"] * 3 + ["two"] * 4 + [None]


async def test_nobody_overtakes_the_first_in_the_queue(fake_lab: FakeLab) -> None:
    holder = FakeRun(fake_lab, id="holder", slots=(0,), devices="all")
    big = FakeRun(fake_lab, id="big", slots=tuple(range(5)), devices="all")
    small = FakeRun(fake_lab, id="small", slots=(0,))
    await holder.launch()
    await big.new_generation("launch")
    await big.backend.ensure_placed(big.place_order())
    await small.new_generation("launch")
    state = await small.backend.ensure_placed(small.place_order())
    assert (state.places, state.waiting_for) == (0, "its turn behind big")
    await big.gone()
    async with observed(holder):
        assert nodes_of(await small.place()) == {"n1"}


async def test_who_waits_is_served_though_nobody_asks_again(fake_lab: FakeLab) -> None:
    first = FakeRun(fake_lab, id="first", devices="all")
    second = FakeRun(fake_lab, id="second", devices="all")
    await first.launch()
    await second.new_generation("launch")
    await second.backend.ensure_placed(second.place_order())
    before = await what(second)
    await first.gone()
    since = (await what(second))[len(before) :]
    assert [done for done in since if done.startswith("create")] == [
        f"create pod second/{n} on n{n} (g1)" for n in range(4)
    ]


async def test_a_new_generation_takes_back_what_was_asked_for(fake_lab: FakeLab) -> None:
    big = FakeRun(fake_lab, slots=tuple(range(6)))
    await big.new_generation("launch")
    await big.backend.ensure_placed(big.place_order())
    await big.new_generation("smaller")
    await big.fault("add-node n5")
    assert await what(big) == []


async def test_a_pod_out_of_reach_does_not_hold_up_its_successor(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.fault("node-down n1 partition")
    await demo.new_generation("pod")
    began = await demo.backend.clock()
    assert (await demo.place(recreate=(1,))).pods[1].node == "n4"
    assert await demo.backend.clock() == began + 2


async def test_a_pod_out_of_reach_hears_later_that_it_had_to_go(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.fault("silence n1")
    assert await demo.backend.ensure_gone(demo.ref) == GoneState(
        done=False, wait=WaitKind.POD_GONE.of("demo/1 on n1")
    )
    assert await left_on(demo.lab) == [demo.ref]
    await demo.fault("unsilence n1")
    await demo.gone()
    assert await demo.backend.leftovers() == ()


async def test_a_pod_behind_the_fence_is_given_up(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    await demo.fault("node-down n1 partition")
    await demo.new_generation("pod")
    await demo.stop(slots=(0, 2, 3))
    await demo.place(recreate=(1,))
    await demo.fence()
    await demo.start()
    await demo.gone()
    assert await demo.backend.leftovers() == ()


async def test_an_order_to_place_that_comes_after_the_end_is_refused(demo: FakeRun) -> None:
    await demo.launch()
    await demo.gone()
    with pytest.raises(StaleGeneration):
        await demo.backend.ensure_placed(demo.place_order())
    assert await demo.backend.leftovers() == ()


async def test_an_earlier_run_cannot_end_what_a_later_one_began(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    later = FakeRun(demo.lab, run="run-2", env=LONG)
    await later.launch()
    with pytest.raises(StaleGeneration):
        await demo.backend.ensure_gone(demo.ref)
    assert {pod.generation for pod in (await later.observe_now()).pods} == {later.generation}


async def test_a_later_run_clears_away_the_pods_of_an_earlier_one(demo: FakeRun) -> None:
    demo.env = LONG
    await demo.launch()
    later = FakeRun(demo.lab, run="run-2", env={"STEPS": "5"})
    await later.launch()
    assert {pod.uid for pod in (await later.observe_now()).pods} == {
        f"demo-{s}-g2" for s in range(4)
    }


async def test_the_effects_log_reads_like_a_story(demo: FakeRun) -> None:
    demo.slots = (0, 1)
    demo.env = LONG
    await demo.launch()
    await demo.step(3)
    await demo.fault("device n1 0 80E01801")
    await demo.new_generation("pod")
    await demo.stop()
    await demo.backend.ensure_healed(demo.ref, generation=2, node="n1", device=0)
    await demo.backend.ensure_isolated("n1", reason="80E01801")
    await demo.place(recreate=(1,))
    await demo.precheck()
    await demo.fence()
    await demo.start()
    await demo.gone()
    story = [f"{effect.at:g} {effect.what}" for effect in await demo.admin.effects()]
    assert story == [
        "0 create pod demo/0 on n0 (g1)",
        "0 create pod demo/1 on n1 (g1)",
        "2 fence demo g1",
        "2 start demo/0 (g1)",
        "2 start demo/1 (g1)",
        "7 stop slot 0 of demo (g1)",
        "7 stop slot 1 of demo (g1)",
        "7 heal n1/0",
        "7 isolate n1",
        "7 remove pod demo/1 from n1 (g1)",
        "7 create pod demo/1 on n2 (g2)",
        "9 check demo/0 on n0 (g2)",
        "9 check demo/1 on n2 (g2)",
        "10 fence demo g2",
        "10 start demo/0 (g2)",
        "10 start demo/1 (g2)",
        "12 remove pod demo/0 from n0 (g1)",
        "12 remove pod demo/1 from n2 (g2)",
    ]
