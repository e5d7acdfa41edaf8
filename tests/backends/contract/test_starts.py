"""Starts, and the checkpoints that they go on from. Held against every backend."""

from __future__ import annotations

import pytest

from everstep.core.errors import NoAgentAvailable
from everstep.core.world import PodState
from tests.backends.lab import Run, effects, uids_of
from tests.backends.verbs import NEVER_ENDS


async def test_every_slot_is_reported_started(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    observation = await job.observe_now()
    assert all(pod.run.started_at is not None for pod in observation.pods)
    assert {pod.generation for pod in observation.pods} == {job.generation}
    assert {pod.state for pod in observation.pods} == {PodState.RUNNING}


async def test_a_slot_that_runs_the_generation_is_left_alone(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    started = [pod.run.started_at for pod in (await job.observe_now()).pods]
    done = await effects(job.lab)
    await job.start()
    assert [pod.run.started_at for pod in (await job.observe_now()).pods] == started
    assert await effects(job.lab) == done


async def test_a_start_that_ended_since_is_still_a_start(job: Run) -> None:
    job.env = {"STEPS": "3"}
    await job.launch()
    await job.see(lambda observation: all(pod.is_done for pod in observation.pods))
    assert (await job.backend.ensure_started(job.start_order())).done
    assert all(pod.run.started_at is not None for pod in (await job.observe_now()).pods)


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
    start_failures = [
        fact for fact in (await job.observe_now()).facts if fact.kind == "start.failed"
    ]
    assert {fact.slot for fact in start_failures} == {*job.slots}
    assert {fact.message for fact in start_failures} == {f"cannot be started: {why}"}
    await job.new_generation("again")
    await job.stop()
    await job.fence()
    await job.start()


async def test_a_restart_in_place_keeps_the_pods_and_runs_the_new_generation(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    before = await job.observe_now()
    await job.again("in place")
    after = await job.observe_now()
    assert uids_of(after) == uids_of(before)
    assert {pod.generation for pod in after.pods} == {job.generation}


async def test_pods_show_what_their_processes_were_told(job: Run) -> None:
    await job.launch()
    pod = await job.pod(1)
    assert pod.run.counts == {"schedule_count": 1, "process_start_count": 1}


async def test_a_job_that_ends_well_is_done_and_tells_no_fact(job: Run) -> None:
    job.env = {"STEPS": "5"}
    await job.launch()
    await job.see(
        lambda observation: bool(observation.pods) and all(pod.is_done for pod in observation.pods)
    )
    assert not job.facts


async def test_checkpoints_come_newest_first_and_observe_shows_the_newest(job: Run) -> None:
    job.env = {"STEPS": "35", "CHECKPOINT_EVERY": "10"}
    await job.launch()
    await job.see(lambda observation: all(pod.is_done for pod in observation.pods))
    saved = await job.backend.checkpoints(job.ref)
    assert [checkpoint.step for checkpoint in saved] == [30, 20, 10]
    assert all(checkpoint.good for checkpoint in saved)
    newest = (await job.observe_now()).checkpoint
    assert newest is not None
    assert newest.step == 30


async def test_a_checkpoint_that_was_set_aside_is_told_no_more(job: Run) -> None:
    job.env = {"STEPS": "35", "CHECKPOINT_EVERY": "10", "CRASH_AT_STEP": "0:34:1"}
    await job.launch()
    await job.fact("process.exit")
    await job.new_generation("restart")
    await job.stop()
    await job.fence()
    newest, chosen, _ = await job.backend.checkpoints(job.ref)
    orders = (job.set_aside_order(newest.path, resume=chosen.path), job.set_aside_order())
    first, again = [await job.backend.ensure_set_aside(order) for order in orders]
    assert (len(first.moved), first.why) == (1, "")
    assert again == first, "whoever comes once more finds nothing to name, and is told the same"
    assert [saved.step for saved in await job.backend.checkpoints(job.ref)] == [20, 10]
    await job.new_generation("another")
    await job.stop()
    await job.fence()
    assert (await job.backend.ensure_set_aside(job.set_aside_order())).moved == ()


async def test_nothing_is_set_aside_while_ranks_of_the_generation_run(job: Run) -> None:
    job.env = {**NEVER_ENDS, "STEP_S": "0.1", "CHECKPOINT_EVERY": "10"}  # a listing has the newest
    await job.launch()
    await job.see(lambda observation: observation.checkpoint is not None)
    saved = (await job.backend.checkpoints(job.ref))[0]
    with pytest.raises(NoAgentAvailable, match=f"ranks of generation {job.generation} may run"):
        await job.backend.ensure_set_aside(job.set_aside_order(saved.path))
    assert saved in await job.backend.checkpoints(job.ref)


async def test_no_checkpoint_is_listed_nor_set_aside_where_no_agent_answers(job: Run) -> None:
    await job.launch()
    for pod in (await job.observe_now()).pods:
        await job.lab.fault(f"node-down {pod.node} partition")
    with pytest.raises(NoAgentAvailable):
        await job.backend.checkpoints(job.ref)
    with pytest.raises(NoAgentAvailable):
        await job.backend.ensure_set_aside(job.set_aside_order())


async def test_a_start_goes_on_from_the_checkpoint_it_is_given(job: Run) -> None:
    job.env = {**NEVER_ENDS, "CHECKPOINT_EVERY": "10", "CRASH_AT_STEP": "0:25:1"}
    await job.launch()
    crash = await job.fact("process.exit")
    assert crash.rank == 0, f"another end came first: {crash}"
    job.env = NEVER_ENDS
    await job.again("restart")
    observation = await job.see(
        lambda observation: all(pod.run.step is not None for pod in observation.pods)
    )
    assert {pod.generation for pod in observation.pods} == {job.generation}
    saved = await job.backend.checkpoints(job.ref)
    context = f"with {[(one.step, one.good) for one in saved]} and {job.facts}: {observation.pods}"
    assert all((pod.run.step or 0) > 20 for pod in observation.pods), context
