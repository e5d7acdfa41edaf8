"""Ends of processes, and of whole jobs. Held against every backend."""

from __future__ import annotations

from everstep.core.world import PodState
from tests.backends.lab import Lab, Run, effects, left_on, uids_of
from tests.backends.verbs import NEVER_ENDS


async def test_stopping_ends_the_processes_and_keeps_the_pods(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    before = uids_of(await job.observe_now())
    await job.new_generation("stop")
    state = await job.stop()
    done = await effects(job.lab)
    assert state.stopped == job.slots
    assert (await job.stop()).stopped == job.slots
    after = await job.observe_now()
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
    assert {pod.state for pod in (await job.observe_now()).pods} == {PodState.RUNNING}


async def test_a_slot_that_does_not_answer_stays_pending(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("node-down n1 partition")
    await job.new_generation("stop")
    order = job.stop_order()
    state = await job.backend.ensure_stopped(order)
    assert 1 in state.pending
    await job.lab.fault("node-up n1")
    await job.until_done(lambda: job.backend.ensure_stopped(order))


async def test_a_slot_on_a_node_proven_lost_counts_as_stopped(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("node-down n1")
    await job.new_generation("stop")
    assert 1 in (await job.stop()).stopped


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


async def test_leftovers_names_the_jobs_that_have_anything(lab: Lab) -> None:
    one, two = (Run(lab, id=name, slots=(0, 1)) for name in ("one", "two"))
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
    assert (await job.observe_now()).pods == ()
    assert all(not node.jobs for node in await job.backend.nodes())
    assert await effects(job.lab) == done


async def test_a_later_run_of_a_gone_job_is_refused_nothing(job: Run) -> None:
    await job.launch()
    await job.gone()
    later = Run(job.lab, run="run-2", slots=job.slots, env={"STEPS": "3"})
    await later.launch()
    await later.see(
        lambda observation: bool(observation.pods) and all(pod.is_done for pod in observation.pods)
    )
    assert not later.facts


async def test_an_end_with_grace_can_be_asked_of_a_whole_job(job: Run) -> None:
    job.env = {**NEVER_ENDS, "CHECKPOINT_EVERY": "1000"}
    await job.launch()
    await job.step(2)
    await job.gone(grace_s=10.0)
    assert await job.backend.leftovers() == ()
