"""Each promise of `everstep.backends.base`, held against every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable, FolderTaken, OtherBooks, StaleGeneration
from everstep.core.world import Observation, PodState
from tests.backends.lab import Lab, Run, effects, left_on, nodes_of, uids_of
from tests.support.patience import HUNG_S

NEVER_ENDS = {"STEPS": "100000"}
STILL_S = 2.0

ORDERS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    "ensure_stopped": lambda job: job.backend.ensure_stopped(job.stop_order()),
    "ensure_healed": lambda job: job.backend.ensure_healed(
        job.ref, generation=job.generation, node="n0", device=0
    ),
    "ensure_placed": lambda job: job.backend.ensure_placed(job.place_order()),
    "ensure_prechecked": lambda job: job.backend.ensure_prechecked(job.precheck_order()),
    "ensure_fenced": lambda job: job.backend.ensure_fenced(job.fence_order()),
    "ensure_started": lambda job: job.backend.ensure_started(job.start_order()),
}

VERBS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    **ORDERS,
    "clock": lambda job: job.backend.clock(),
    "nodes": lambda job: job.backend.nodes(),
    "ensure_generation": lambda job: job.backend.ensure_generation(job.ref, "another"),
    "observe": lambda job: job.backend.observe(job.ref, cursor=0),
    "check": lambda job: job.backend.check(job.ref),
    "checkpoints": lambda job: job.backend.checkpoints(job.ref),
    "ensure_isolated": lambda job: job.backend.ensure_isolated("n4", reason="broken"),
    "ensure_released": lambda job: job.backend.ensure_released("n4"),
    "ensure_recorded": lambda job: job.backend.ensure_recorded(job.ref, ()),
    "ensure_gone": lambda job: job.backend.ensure_gone(job.ref),
    "leftovers": lambda job: job.backend.leftovers(),
}


@pytest.mark.long
async def test_what_a_device_shows_is_movement_while_everything_else_is_still(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.step(3)
    for rank in job.slots:
        await job.lab.fault(f"hang demo {rank}")

    async def until(claim: Callable[[Observation], bool]) -> Observation:
        while not claim(seen := await job.observe(until=await job.backend.clock() + 0.5)):
            pass
        return seen

    def moved_at(seen: Observation, slot: int) -> float:
        return next(pod.moved_at or 0.0 for pod in seen.pods if pod.slot == slot)

    def is_still(seen: Observation, slot: int) -> bool:
        return seen.now - moved_at(seen, slot) >= STILL_S

    began = (await until(lambda seen: is_still(seen, 0) and is_still(seen, 1))).now
    await job.lab.fault("metric n1 0 vary")
    await until(lambda seen: moved_at(seen, 1) >= began + STILL_S)
    await job.lab.fault("metric n1 0 37")
    assert moved_at(await until(lambda seen: is_still(seen, 1)), 0) < began


async def is_steady(job: Run, slot: int, sign: str) -> bool:
    """Whether this sign of life of the slot is known, and does not come again for a while."""
    before = getattr(await job.pod(slot), sign)
    ends = await job.backend.clock() + STILL_S / 2
    while (await job.observe(until=ends)).now < ends:
        pass  # something changed meanwhile
    return before is not None and getattr(await job.pod(slot), sign) == before


@pytest.mark.long
async def test_io_and_the_use_of_devices_are_told_of_each_slot_by_itself(job: Run) -> None:
    job.env, job.still_s = NEVER_ENDS, STILL_S
    await job.launch()
    await job.step(3)
    await job.lab.fault("hang demo 1")
    for sign in ("io_at", "busy_at"):
        while not await is_steady(job, 1, sign):
            pass  # the newest look may still see what came before
        while await is_steady(job, 0, sign):
            pass
    await job.lab.fault("metric n1 0 vary")
    while await is_steady(job, 1, "busy_at"):
        pass
    assert await is_steady(job, 1, "io_at")
    await job.lab.fault("metric n1 0 37")
    while not await is_steady(job, 1, "busy_at"):
        pass
    before = (await job.pod(1)).busy_at
    await job.lab.fault("metric n1 0 38")  # tools round
    assert await is_steady(job, 1, "busy_at")
    assert (await job.pod(1)).busy_at == before
    await job.lab.fault("metric n1 0 60")
    while (await job.pod(1)).busy_at == before:
        await is_steady(job, 1, "busy_at")


async def test_without_devices_no_use_of_them_is_known(job: Run) -> None:
    job.env, job.still_s, job.devices = NEVER_ENDS, STILL_S, 0
    await job.launch()
    while (await job.pod(0)).io_at is None:
        await job.observe(until=await job.backend.clock() + 0.2)
    assert {pod.busy_at for pod in (await job.look()).pods} == {None}


# --- generations --------------------------------------------------------------------------------


async def test_the_same_key_gets_the_same_generation_and_a_new_one_the_next(job: Run) -> None:
    first = await job.new_generation("a")
    assert await job.new_generation("a") == first
    assert await job.new_generation("b") == first + 1
    assert await job.new_generation("a") == first


async def test_generations_of_an_id_grow_over_its_runs(lab: Lab) -> None:
    first = await Run(lab, run="run-1").new_generation("launch")
    second = await Run(lab, run="run-2").new_generation("launch")
    assert second == first + 1


async def test_generations_stay_known_after_the_job_is_gone(job: Run) -> None:
    await job.launch()
    before = job.generation
    await job.gone()
    later = Run(job.lab, run="run-2")
    await later.launch()
    assert later.generation == before + 1


async def test_generations_of_two_jobs_have_nothing_to_do_with_each_other(lab: Lab) -> None:
    await Run(lab, id="one").new_generation("a")
    assert await Run(lab, id="two").new_generation("a") == 1


async def test_an_order_of_an_older_generation_is_refused_and_changes_nothing(
    job: Run, subtests: pytest.Subtests
) -> None:
    await job.launch()
    late = Run(job.lab, generation=job.generation)
    await job.again("restart")
    before, done = await job.look(), await effects(job.lab)
    for verb, call in ORDERS.items():
        over = pytest.raises(StaleGeneration, match="generation 1 of demo is over")
        with subtests.test(verb), over:
            await call(late)
    after = await job.look()
    assert (uids_of(after), await effects(job.lab)) == (uids_of(before), done)
    assert [pod.generation for pod in after.pods] == [pod.generation for pod in before.pods]


async def test_observe_tells_the_newest_generation(job: Run) -> None:
    await job.new_generation("a")
    newest = await job.new_generation("b")
    assert (await job.look()).generation == newest


async def test_a_folder_belongs_to_one_living_job(lab: Lab) -> None:
    first, second = Run(lab, id="first"), Run(lab, id="second")
    shared = {f"{lab.storage}/shared": "model_dir"}
    await lab.backend.ensure_generation(first.ref, "launch", folders=shared)
    await lab.backend.ensure_generation(first.ref, "again", folders=shared)
    with pytest.raises(FolderTaken, match=r"model_dir: job first.*writes to .*shared"):
        await lab.backend.ensure_generation(
            second.ref, "launch", folders={f"{lab.storage}/own": "checkpoints.path", **shared}
        )
    assert await left_on(lab) == [first.ref], "nothing is the second job's"
    await first.until_done(lambda: lab.backend.ensure_gone(first.ref))
    assert await lab.backend.ensure_generation(second.ref, "launch", folders=shared) > 0


async def test_a_new_job_begins_above_the_fence_it_finds_in_its_folders(lab: Lab) -> None:
    old = Run(lab, id="old", slots=(0,))
    for number in range(4):
        await old.new_generation(f"restart-{number}")
    await old.place()
    await old.fence()
    await old.until_done(lambda: lab.backend.ensure_gone(old.ref))
    new = Run(lab, id="new", slots=(0,))
    order = new.fence_order(model_dir=old.model_dir, checkpoints_path=None)
    await new.new_generation("launch")
    await new.place()
    for _ in range(2):  # whoever was killed in between asks again
        state = await lab.backend.ensure_fenced(replace(order, generation=new.generation))
        assert (state.done, state.newer) == (False, old.generation)
    await new.new_generation("launch again")
    assert new.generation == old.generation + 1
    await new.stop()
    await new.fence(model_dir=old.model_dir, checkpoints_path=None)
    await new.start()


# --- placing ------------------------------------------------------------------------------------


async def test_every_slot_gets_a_pod(job: Run) -> None:
    await job.new_generation("launch")
    places = await job.place()
    seen = await job.look()
    assert set(places.pods) == set(job.slots)
    assert {slot: ref.uid for slot, ref in places.pods.items()} == uids_of(seen)


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
    assert (await big.look()).pods == ()


async def test_a_waiting_order_may_ask_for_less(lab: Lab) -> None:
    big = Run(lab, slots=tuple(range(6)))
    await big.new_generation("launch")
    await big.backend.ensure_placed(big.place_order())
    fewer = tuple(range(5))
    assert set((await big.place(slots=fewer, recreate=fewer)).pods) == set(fewer)


async def test_only_the_slots_to_recreate_get_new_pods(job: Run) -> None:
    await job.launch()
    before = uids_of(await job.look())
    await job.new_generation("pod")
    await job.stop()
    after = (await job.place(recreate=(2,))).pods
    assert {slot: after[slot].uid for slot in (0, 1, 3)} == {s: before[s] for s in (0, 1, 3)}
    assert after[2].uid != before[2]


async def test_pods_of_slots_not_named_are_removed(job: Run) -> None:
    await job.launch()
    await job.new_generation("smaller")
    await job.stop()
    await job.place(slots=(0, 1, 3), recreate=())
    assert set(uids_of(await job.look())) == {0, 1, 3}


async def test_nothing_lands_on_an_isolated_node_until_it_is_released(job: Run) -> None:
    await job.backend.ensure_isolated("n1", reason="broken")
    await job.backend.ensure_isolated("n1", reason="broken")
    await job.new_generation("launch")
    assert "n1" not in nodes_of(await job.place())
    await job.backend.ensure_released("n1")
    await job.backend.ensure_released("n1")
    await job.backend.ensure_isolated("n4", reason="broken")
    await job.new_generation("again")
    assert "n1" in nodes_of(await job.place())


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
    first = Run(lab, id="first", devices="all")
    second = Run(lab, id="second", devices="all")
    await first.launch()
    await second.new_generation("launch")
    assert not (await second.backend.ensure_placed(second.place_order())).placed
    await first.gone()
    await second.place()
    assert set(uids_of(await second.look())) == set(second.slots)


async def test_restarted_jobs_are_served_first_then_priority_then_the_order_of_asking(
    lab: Lab,
) -> None:
    everybody: dict[str, dict[str, Any]] = {
        "early": {},
        "late": {},
        "important": {"priority": 5},
        "reissued": {"reissued": True},
    }
    owner = Run(lab, id="owner", devices="all")
    await owner.launch()
    runs = {name: Run(lab, id=name, devices="all") for name in everybody}
    for name, changes in everybody.items():
        await runs[name].new_generation("launch")
        await lab.backend.ensure_placed(runs[name].place_order(**changes))
    served: list[str] = []
    holder = owner
    while len(served) < len(everybody):
        await holder.gone()
        holder = await the_one_with_pods([run for run in runs.values() if run.id not in served])
        served.append(holder.id)
    assert served == ["reissued", "important", "early", "late"]


async def the_one_with_pods(runs: list[Run]) -> Run:
    found = [run for run in runs if (await run.look()).pods]
    assert len(found) == 1
    return found[0]


# --- checks before the start --------------------------------------------------------------------


async def test_the_checks_of_sound_places_find_nothing(job: Run) -> None:
    await job.new_generation("launch")
    await job.place()
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    assert state.failures == ()


@pytest.mark.parametrize(("word", "hardware"), [("hardware", True), ("", False)])
async def test_a_failing_check_says_where_and_whose_fault(
    job: Run, word: str, hardware: bool
) -> None:
    await job.lab.fault(f"precheck n2 disk {word}")
    await job.new_generation("launch")
    await job.place()
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    (failure,) = state.failures
    assert (failure.kind, failure.node, failure.slot) == ("precheck.disk", "n2", 2)
    assert failure.details["hardware"] is hardware
    again = await job.backend.ensure_prechecked(job.precheck_order())
    assert again == state


# --- starting -----------------------------------------------------------------------------------


async def test_every_slot_is_reported_started(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    seen = await job.look()
    assert all(pod.started_at is not None for pod in seen.pods)
    assert {pod.generation for pod in seen.pods} == {job.generation}
    assert {pod.state for pod in seen.pods} == {PodState.RUNNING}


async def test_a_slot_that_runs_the_generation_is_left_alone(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    started = [pod.started_at for pod in (await job.look()).pods]
    done = await effects(job.lab)
    await job.start()
    assert [pod.started_at for pod in (await job.look()).pods] == started
    assert await effects(job.lab) == done


async def test_a_start_that_ended_since_is_still_a_start(job: Run) -> None:
    job.env = {"STEPS": "3"}
    await job.launch()
    await job.see(lambda seen: all(pod.is_done for pod in seen.pods))
    assert (await job.backend.ensure_started(job.start_order())).done
    assert all(pod.started_at is not None for pod in (await job.look()).pods)


async def test_a_command_that_cannot_be_started_is_named_with_its_reason(job: Run) -> None:
    await job.new_generation("launch")
    await job.stop()
    await job.place()
    await job.fence()
    why = "/no/such/program: No such file or directory"
    order = job.start_order(command=("/no/such/program",), env={"CANNOT_START": why})
    while len((state := await job.backend.ensure_started(order)).failed) < len(job.slots):
        await job.observe()
    assert (state.started, state.pending) == ((), job.slots)
    assert state.failed == dict.fromkeys(job.slots, why)
    assert (await job.backend.ensure_started(order)).failed == state.failed
    told = [fact for fact in (await job.look()).facts if fact.kind == "start.failed"]
    assert {fact.slot for fact in told} == {*job.slots}
    assert {fact.message for fact in told} == {f"cannot be started: {why}"}
    await job.new_generation("again")
    await job.stop()
    await job.fence()
    await job.start()


async def test_a_restart_in_place_keeps_the_pods_and_runs_the_new_generation(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    before = await job.look()
    await job.again("in place")
    after = await job.look()
    assert uids_of(after) == uids_of(before)
    assert {pod.generation for pod in after.pods} == {job.generation}


async def test_pods_show_what_their_processes_were_told(job: Run) -> None:
    await job.launch()
    pod = await job.pod(3)
    assert (pod.schedule_count, pod.process_start_count) == (1, 1)


async def test_a_job_that_ends_well_is_done_and_tells_no_fact(job: Run) -> None:
    job.env = {"STEPS": "5"}
    await job.launch()
    await job.see(lambda seen: bool(seen.pods) and all(pod.is_done for pod in seen.pods))
    assert not job.facts


# --- observing ----------------------------------------------------------------------------------


async def test_the_end_of_a_rank_is_told_with_its_place_and_cause(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("kill demo 2 signal 9")
    fact = await job.fact("process.exit")
    assert (fact.rank, fact.slot, fact.node) == (2, 2, (await job.pod(2)).node)
    assert (fact.generation, fact.details["signal"]) == (job.generation, 9)
    assert [exit.signal for exit in (await job.pod(2)).exits] == [9]


async def test_the_same_cursor_brings_the_same_facts_in_the_same_order(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("kill demo 0 exit 7")
    await job.lab.fault("device n1 0 80E01801 heals")
    await job.lab.fault("kill demo 3 exit 8")
    seen = await job.see(lambda _: len(job.facts) >= 3)
    first = await job.backend.observe(job.ref, cursor=0)
    second = await job.backend.observe(job.ref, cursor=0)
    assert first.facts == second.facts
    assert [fact.id for fact in first.facts] == [fact.id for fact in job.facts]
    assert len({fact.id for fact in first.facts}) == 3
    assert (await job.backend.observe(job.ref, cursor=seen.cursor, wait_s=0.1)).facts == ()


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
    seen = await idle.observe(wait_s=0.05)
    again = await asyncio.wait_for(idle.observe(wait_s=0.05), HUNG_S)
    assert replace(again, now=seen.now) == seen


async def test_observe_wakes_when_something_changes(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.step(1)
    await job.lab.fault("hang demo 0")  # now nothing would happen by itself
    job.cursor = (await job.look()).cursor
    open_call = asyncio.ensure_future(job.observe(wait_s=30))
    await asyncio.sleep(0.05)
    assert not open_call.done()
    await job.lab.fault("kill demo 1 exit 3")
    woken = await asyncio.wait_for(open_call, 20)
    assert [fact.rank for fact in woken.facts] == [1]


async def test_the_clock_never_goes_back(job: Run) -> None:
    job.env = {"STEPS": "20"}
    times = [await job.backend.clock()]
    await job.launch()
    for _ in range(5):
        seen = await job.observe(until=await job.backend.clock() + 2.0, wait_s=5)
        times += [seen.now, await job.backend.clock()]
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


# --- stopping -----------------------------------------------------------------------------------


async def test_stopping_ends_the_processes_and_keeps_the_pods(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    before = uids_of(await job.look())
    await job.new_generation("stop")
    state = await job.stop()
    done = await effects(job.lab)
    assert state.stopped == job.slots
    assert (await job.stop()).stopped == job.slots
    after = await job.look()
    assert uids_of(after) == before
    assert {pod.state for pod in after.pods} == {PodState.STOPPED}
    assert await effects(job.lab) == done
    assert not job.facts, "what was ordered is not a fact"


async def test_only_the_named_slots_are_stopped(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.new_generation("stop")
    assert (await job.stop(slots=(1,))).stopped == (1,)
    assert (await job.pod(1)).state is PodState.STOPPED
    assert (await job.pod(0)).state is PodState.RUNNING


async def test_the_processes_of_the_generation_itself_are_left_alone(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.stop()
    assert {pod.state for pod in (await job.look()).pods} == {PodState.RUNNING}


async def test_a_slot_that_does_not_answer_stays_pending(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("node-down n2 partition")
    await job.new_generation("stop")
    order = job.stop_order()
    state = await job.backend.ensure_stopped(order)
    assert 2 in state.pending
    await job.lab.fault("node-up n2")
    await job.until_done(lambda: job.backend.ensure_stopped(order))


async def test_a_slot_on_a_node_proven_lost_counts_as_stopped(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("node-down n2")
    await job.new_generation("stop")
    assert 2 in (await job.stop()).stopped


async def test_evidence_is_kept_where_it_is_asked_for(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.new_generation("stop")
    assert (await job.stop(evidence=True)).evidence


async def test_an_end_with_grace_leaves_a_checkpoint(job: Run) -> None:
    job.env = {**NEVER_ENDS, "CHECKPOINT_EVERY": "1000"}
    await job.launch()
    await job.step(3)
    await job.new_generation("stop")
    await job.stop(grace_s=10.0)
    (saved,) = await job.backend.checkpoints(job.ref)
    assert (saved.step or 0) >= 3


# --- healing and checking -----------------------------------------------------------------------


async def heal(job: Run, node: str, device: int) -> str:
    async def ask() -> str:
        state = await job.backend.ensure_healed(
            job.ref, generation=job.generation, node=node, device=device
        )
        return state.state

    while (state := await ask()) == "healing":
        await job.observe()
    return state


async def test_a_device_that_can_repair_itself_is_healed(job: Run) -> None:
    await job.launch()
    await job.lab.fault("device n0 0 80E01801 heals")
    assert (await job.fact("device.fault")).code == "80E01801"
    assert await heal(job, "n0", 0) == "healed"
    assert await heal(job, "n0", 0) == "healed"
    assert await job.backend.check(job.ref) == ()


KNOWN_OF_CODES: dict[str, dict[str, object]] = {
    "80E01801": {"severity": "minor", "heals": True},
    "79": {"severity": "critical", "heals": False},
    "80CB8002": {"severity": "minor", "heals": True, "user_induced": True},
    "79 minor": {"severity": "minor", "heals": True},
    "79 heals": {"severity": "major", "heals": True},
    "80E01801 no-heals": {"severity": "minor", "heals": False},
}


async def test_a_device_fault_says_what_is_known_of_its_code(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    job = Run(lab, devices="all")
    await job.launch()
    for device, (words, details) in enumerate(KNOWN_OF_CODES.items()):
        with subtests.test(words):
            await lab.fault(f"device n0 {device} {words}")
            assert (await job.fact("device.fault")).details == details


async def test_a_device_without_a_fault_is_healed(job: Run) -> None:
    await job.launch()
    done = await effects(job.lab)
    assert await heal(job, "n0", 5) == "healed"
    assert await effects(job.lab) == done


async def test_a_failed_heal_stays_failed(job: Run) -> None:
    await job.launch()
    await job.lab.fault("device n0 0 80E01801 no-heals")
    assert await heal(job, "n0", 0) == "failed"
    done = await effects(job.lab)
    assert await heal(job, "n0", 0) == "failed"
    assert await effects(job.lab) == done


async def test_a_new_fault_is_asked_anew_whether_it_heals(job: Run) -> None:
    await job.launch()
    await job.lab.fault("device n0 0 80E01801 no-heals")
    assert await heal(job, "n0", 0) == "failed"
    await job.lab.fault("device n0 0 80CB8002 heals")
    state = await job.backend.ensure_healed(job.ref, generation=job.generation, node="n0", device=0)
    assert state.state == "healing"
    assert await heal(job, "n0", 0) == "failed"
    await job.lab.fault("clear n0 0")
    assert await heal(job, "n0", 0) == "healed"


async def test_a_node_that_is_down_cannot_be_cut_off(lab: Lab) -> None:
    for line in ("node-down n1", "node-down n1 partition"):
        await lab.fault(line)
    reasons = {node.name: node.reason for node in await lab.backend.nodes()}
    assert reasons["n1"] == "n1 is down"


async def test_check_finds_what_observe_told_and_only_while_it_is_there(job: Run) -> None:
    await job.launch()
    assert await job.backend.check(job.ref) == ()
    await job.lab.fault("device n1 0 80E01801 heals")
    told = await job.fact("device.fault")
    found = await job.backend.check(job.ref)
    assert [(fact.id, fact.kind, fact.device) for fact in found] == [(told.id, "device.fault", 0)]
    await job.lab.fault("clear n1 0")
    assert await job.backend.check(job.ref) == ()


async def test_a_device_fault_is_told_to_who_holds_the_device(lab: Lab) -> None:
    holder, neighbour = Run(lab, id="holder"), Run(lab, id="neighbour")
    await neighbour.new_generation("launch")
    await neighbour.backend.ensure_placed(neighbour.place_order())
    await holder.new_generation("launch")
    await holder.backend.ensure_placed(holder.place_order())
    held = next(
        device.index
        for node in await lab.backend.nodes()
        if node.name == "n0"
        for device in node.devices
        if device.job == "holder"
    )
    await lab.fault(f"device n0 {held} 80E01801")
    assert (await holder.look()).facts
    assert not (await neighbour.look()).facts


# --- fencing ------------------------------------------------------------------------------------


async def test_the_fence_holds_at_once_when_everything_older_is_stopped(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.new_generation("next")
    await job.stop()
    began = await job.backend.clock()
    await job.fence()
    done = await effects(job.lab)
    await job.fence()
    assert await job.backend.clock() - began < 30.0
    assert await effects(job.lab) == done


async def test_without_proof_the_fence_holds_when_its_time_has_passed(job: Run) -> None:
    await replace_a_cut_off_pod(job)
    began = await job.backend.clock()
    await job.fence()
    assert job.lab.fence_s <= await job.backend.clock() - began < job.lab.fence_s + HUNG_S


async def test_a_proof_ends_the_wait_for_the_fence(job: Run) -> None:
    await replace_a_cut_off_pod(job)
    assert not (await job.backend.ensure_fenced(job.fence_order())).done
    await job.lab.fault("node-down n1")
    assert (await job.backend.ensure_fenced(job.fence_order())).done


async def test_without_a_place_for_the_fence_only_proof_counts(job: Run) -> None:
    await replace_a_cut_off_pod(job)
    order = job.fence_order(model_dir=None, checkpoints_path=None)
    ends = await job.backend.clock() + 2 * job.lab.fence_s
    while (await job.observe(until=ends, wait_s=0.2)).now < ends:
        assert not (await job.backend.ensure_fenced(order)).done
    assert (await job.backend.ensure_fenced(order)).waiting_for
    await job.lab.fault("node-up n1")
    await job.until_done(lambda: job.backend.ensure_fenced(order))


async def test_a_storage_that_takes_no_fence_says_what_is_wrong_with_it(job: Run) -> None:
    await job.new_generation("launch")
    await job.stop()
    await job.place()
    await job.lab.fault("storage demo unwritable")
    state = await job.backend.ensure_fenced(job.fence_order())
    assert (state.done, state.unwritable) == (False, "the storage of demo is unwritable")
    assert state.waiting_for == f"the storage: {state.unwritable}"
    await job.lab.fault("storage demo writable")
    await job.fence()


async def replace_a_cut_off_pod(job: Run) -> None:
    """Slot 1 is given another node while its old processes live on, out of reach."""
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("node-down n1 partition")
    await job.fact("node.not_ready")
    await job.new_generation("pod")
    await job.stop(slots=(0, 2, 3))
    assert "n1" not in nodes_of(await job.place(recreate=(1,)))


# --- checkpoints --------------------------------------------------------------------------------


async def test_checkpoints_come_newest_first_and_observe_shows_the_newest(job: Run) -> None:
    job.env = {"STEPS": "35", "CHECKPOINT_EVERY": "10"}
    await job.launch()
    await job.see(lambda seen: all(pod.is_done for pod in seen.pods))
    saved = await job.backend.checkpoints(job.ref)
    assert [checkpoint.step for checkpoint in saved] == [30, 20, 10]
    assert all(checkpoint.good for checkpoint in saved)
    newest = (await job.look()).checkpoint
    assert newest is not None
    assert newest.step == 30


async def test_a_start_goes_on_from_the_checkpoint_it_is_given(job: Run) -> None:
    job.env = {"STEPS": "35", "CHECKPOINT_EVERY": "10", "CRASH_AT_STEP": "0:25:1"}
    await job.launch()
    await job.fact("process.exit")
    job.env = {"STEPS": "35", "CHECKPOINT_EVERY": "10"}
    await job.again("restart")
    seen = await job.see(lambda seen: all(pod.step is not None for pod in seen.pods))
    assert all((pod.step or 0) > 20 for pod in seen.pods)


# --- ending -------------------------------------------------------------------------------------


async def test_leftovers_names_the_jobs_that_have_anything(lab: Lab) -> None:
    one, two = Run(lab, id="one"), Run(lab, id="two")
    assert await lab.backend.leftovers() == ()
    await one.launch()
    await two.new_generation("launch")
    assert await left_on(lab) == [one.ref]
    await two.backend.ensure_placed(two.place_order())
    assert set(await left_on(lab)) == {one.ref, two.ref}


async def test_a_gone_job_leaves_nothing(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.gone()
    done = await effects(job.lab)
    assert (await job.backend.ensure_gone(job.ref)).done
    assert await job.backend.leftovers() == ()
    assert (await job.look()).pods == ()
    assert all(not node.jobs for node in await job.backend.nodes())
    assert await effects(job.lab) == done


async def test_a_later_run_of_a_gone_job_is_refused_nothing(job: Run) -> None:
    await job.launch()
    await job.gone()
    later = Run(job.lab, run="run-2", env={"STEPS": "3"})
    await later.launch()
    await later.see(lambda seen: bool(seen.pods) and all(pod.is_done for pod in seen.pods))
    assert not later.facts


async def test_an_end_with_grace_can_be_asked_of_a_whole_job(job: Run) -> None:
    job.env = {**NEVER_ENDS, "CHECKPOINT_EVERY": "1000"}
    await job.launch()
    await job.step(2)
    await job.gone(grace_s=10.0)
    assert await job.backend.leftovers() == ()


# --- the cluster itself -------------------------------------------------------------------------


def entries(job: Run, *numbers: int) -> tuple[Entry, ...]:
    line = Entry(phase="main", model_dir=job.model_dir, began=1_000.0, at=1_000.0, run=1, text="")
    return tuple(replace(line, number=n, at=1_000.0 + n, text=f"line {n}") for n in numbers)


async def test_what_is_recorded_is_there_once_however_often_and_late_it_comes(job: Run) -> None:
    await job.launch()
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    await asyncio.gather(
        *(job.backend.ensure_recorded(job.ref, entries(job, 1, 2, 3)) for _ in range(3))
    )
    await job.gone()
    await job.backend.ensure_recorded(job.ref, entries(job, 2, 3, 4))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2", "line 3", "line 4"]


async def test_what_is_recorded_is_there_once_whichever_pods_live(job: Run) -> None:
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    await job.launch()
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    await job.lab.fault("node-down n0")
    await job.backend.ensure_recorded(job.ref, entries(job, 2, 3))
    for node in ("n1", "n2", "n3"):
        await job.lab.fault(f"node-down {node} partition")
    await job.backend.ensure_recorded(job.ref, entries(job, 3, 4))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2", "line 3", "line 4"]


async def test_a_storage_that_takes_no_records_is_said_to_be_unavailable(job: Run) -> None:
    await job.launch()
    await job.lab.fault("storage demo")
    with pytest.raises(BackendUnavailable):
        await job.backend.ensure_recorded(job.ref, entries(job, 1))
    await job.lab.fault("storage demo writable")
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    assert await job.lab.recorded(job.id) == ["line 1"]


async def test_records_of_a_job_of_other_books_are_refused(job: Run) -> None:
    await job.launch()
    with pytest.raises(OtherBooks):
        await job.backend.ensure_recorded(replace(job.ref, books="others"), entries(job, 1))
    assert await job.lab.recorded(job.id) == []


async def test_nodes_are_all_there_in_a_stable_order(job: Run) -> None:
    names = [node.name for node in await job.backend.nodes()]
    await job.backend.ensure_isolated("n1", reason="broken")
    await job.lab.fault("node-down n3")
    seen = await job.backend.nodes()
    assert [node.name for node in seen] == names
    states = {node.name: (node.ready, node.isolated) for node in seen}
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
    assert {pod.generation for pod in (await job.look()).pods} == {job.generation}


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
