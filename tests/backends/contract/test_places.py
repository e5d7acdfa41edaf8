"""Who gets which pods, and when; the checks before a start. Held against every backend."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.core.world import PodState
from tests.backends.lab import Lab, Run, effects, leave_room_on, nodes_of, uids_of
from tests.backends.verbs import NEVER_ENDS


async def test_every_slot_gets_a_pod(job: Run) -> None:
    job.slots = (0, 1, 2, 3)
    await job.new_generation("launch")
    places = await job.place()
    observation = await job.observe_now()
    assert set(places.pods) == set(job.slots)
    assert {slot: ref.uid for slot, ref in places.pods.items()} == uids_of(observation)


async def test_the_same_generation_always_gets_the_same_pods(job: Run) -> None:
    await job.new_generation("launch")
    places, done = await job.place(), await effects(job.lab)
    assert await job.place() == places
    assert await effects(job.lab) == done


async def test_pods_are_made_for_all_slots_or_for_none(lab: Lab) -> None:
    big = Run(lab, slots=tuple(range(6)))
    await big.new_generation("launch")
    state = await big.backend.ensure_placed(big.place_order())
    assert not state.placed
    assert state.places == 5
    assert state.waiting_for
    assert (await big.observe_now()).pods == ()


async def test_a_waiting_order_may_ask_for_less(lab: Lab) -> None:
    await leave_room_on(lab, 2)
    big = Run(lab, slots=(0, 1, 2))
    await big.new_generation("launch")
    await big.backend.ensure_placed(big.place_order())
    fewer = (0, 1)
    assert set((await big.place(slots=fewer, recreate=fewer)).pods) == set(fewer)


async def test_only_the_slots_to_recreate_get_new_pods(job: Run) -> None:
    job.slots = (0, 1, 2)
    await job.launch()
    before = uids_of(await job.observe_now())
    await job.new_generation("pod")
    await job.stop()
    after = (await job.place(recreate=(1,))).pods
    assert {slot: after[slot].uid for slot in (0, 2)} == {s: before[s] for s in (0, 2)}
    assert after[1].uid != before[1]


async def test_pods_of_slots_not_named_are_removed(job: Run) -> None:
    job.slots = (0, 1, 2)
    await job.launch()
    await job.new_generation("smaller")
    await job.stop()
    await job.place(slots=(0, 2), recreate=())
    assert set(uids_of(await job.observe_now())) == {0, 2}


async def test_nothing_lands_on_an_isolated_node_until_it_is_released(job: Run) -> None:
    await job.backend.ensure_isolated("n1", reason="broken")
    await job.backend.ensure_isolated("n1", reason="broken")
    await job.new_generation("launch")
    assert "n1" not in nodes_of(await job.place())
    await job.backend.ensure_released("n1")
    await job.backend.ensure_released("n1")
    for node in ("n2", "n3", "n4"):
        await job.backend.ensure_isolated(node, reason="broken")
    await job.new_generation("again")
    assert "n1" in nodes_of(await job.place())


REASONS = ("81078603 lasts longer than 20 s", "80E01801 came 2 times")


async def test_the_mark_of_a_node_has_the_newest_reason(job: Run) -> None:
    for reason in REASONS:
        await job.backend.ensure_isolated("n1", reason=reason)
    node = next(n for n in await job.backend.nodes() if n.name == "n1")
    assert node.reason == REASONS[-1]


async def test_the_mark_of_a_device_has_the_newest_reason(job: Run) -> None:
    for reason in REASONS:
        await job.backend.ensure_isolated("n1/0", reason=reason)
    node = next(n for n in await job.backend.nodes() if n.name == "n1")
    assert node.devices[0].isolated == REASONS[-1]


async def test_nobody_gets_an_isolated_device_until_it_is_released(job: Run) -> None:
    for _ in range(2):
        await job.backend.ensure_isolated("n1/0", reason="broken")
    (node,) = [node for node in await job.backend.nodes() if node.name == "n1"]
    assert not node.isolated
    assert [d.isolated for d in node.devices][:2] == ["broken", None]
    assert [d.health for d in node.devices][:2] == ["isolated", "ok"]
    await job.new_generation("launch")
    await job.place(slots=(0, 1), recreate=(0, 1), avoid=("n2", "n3", "n4"))
    held = {
        (node.name, device.index)
        for node in await job.backend.nodes()
        for device in node.devices
        if device.job == job.id
    }
    assert len(held) == 2
    assert ("n1", 0) not in held
    for _ in range(2):
        await job.backend.ensure_released("n1/0")
    (node,) = [node for node in await job.backend.nodes() if node.name == "n1"]
    assert node.devices[0].health == "ok"


async def test_what_runs_on_a_node_goes_on_when_it_is_isolated(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    node = (await job.pod(1)).node
    await job.backend.ensure_isolated(node, reason="broken")
    await job.step(2)
    assert (await job.pod(1)).state is PodState.RUNNING
    assert next(n for n in await job.backend.nodes() if n.name == node).isolated


async def test_nodes_and_devices_to_avoid_are_avoided(job: Run) -> None:
    await job.new_generation("launch")
    slots = (0, 1)
    places = await job.place(
        slots=slots, recreate=slots, avoid=("n0", "n3"), avoid_devices=(("n1", 0), ("n1", 1))
    )
    assert not nodes_of(places) & {"n0", "n3"}
    held = {
        (node.name, device.index)
        for node in await job.backend.nodes()
        for device in node.devices
        if device.job == job.id
    }
    assert len(held) == 2
    assert not held & {("n1", 0), ("n1", 1)}


async def test_a_waiting_order_is_served_when_there_is_room(lab: Lab) -> None:
    await leave_room_on(lab, 3)
    first = Run(lab, id="first", devices="all", slots=(0, 1))
    second = Run(lab, id="second", devices="all", slots=(0, 1))
    await first.launch()
    await second.new_generation("launch")
    assert not (await second.backend.ensure_placed(second.place_order())).placed
    await first.gone()
    await second.place()
    assert set(uids_of(await second.observe_now())) == set(second.slots)


async def test_restarted_jobs_are_served_first_then_priority_then_the_order_of_asking(
    lab: Lab,
) -> None:
    job_options: dict[str, dict[str, Any]] = {
        "early": {},
        "late": {},
        "important": {"priority": 5},
        "reissued": {"reissued": True},
    }
    await leave_room_on(lab, 1)
    owner = Run(lab, id="owner", devices="all", slots=(0,))
    await owner.launch()
    runs = {name: Run(lab, id=name, devices="all", slots=(0,)) for name in job_options}
    for name, changes in job_options.items():
        await runs[name].new_generation("launch")
        await lab.backend.ensure_placed(runs[name].place_order(**changes))
    served: list[str] = []
    holder = owner
    while len(served) < len(job_options):
        await holder.gone()
        holder = await the_one_with_pods([run for run in runs.values() if run.id not in served])
        served.append(holder.id)
    assert served == ["reissued", "important", "early", "late"]


async def the_one_with_pods(runs: list[Run]) -> Run:
    placed_runs = [run for run in runs if (await run.observe_now()).pods]
    assert len(placed_runs) == 1
    return placed_runs[0]


async def test_the_checks_of_sound_places_find_nothing(job: Run) -> None:
    await job.new_generation("launch")
    await job.place()
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    assert state.failures == ()


@pytest.mark.parametrize(("word", "hardware"), [("hardware", True), ("", False)])
async def test_a_failing_check_says_where_and_whose_fault(
    job: Run, word: str, hardware: bool
) -> None:
    await job.lab.fault(f"precheck n1 disk {word}")
    await job.new_generation("launch")
    await job.place()
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    (failure,) = state.failures
    assert (failure.kind, failure.node, failure.slot) == ("precheck.disk", "n1", 1)
    assert failure.details["hardware"] is hardware
    again = await job.backend.ensure_prechecked(job.precheck_order())
    assert again == state


async def test_a_node_of_the_last_choice_is_taken_only_where_no_other_has_room(job: Run) -> None:
    await job.new_generation("launch")
    assert "n0" not in nodes_of(await job.place(last_choice=("n0",)))
    for node in ("n1", "n2", "n3", "n4"):
        await job.backend.ensure_isolated(node, reason="broken")
    job.slots = (0,)
    await job.new_generation("again")
    assert nodes_of(await job.place(slots=(0,), recreate=(0,), last_choice=("n0",))) == {"n0"}
