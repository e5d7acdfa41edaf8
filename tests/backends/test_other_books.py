"""Books with less than the job did are refused, until an operator confirms that they are complete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.errors import WrongCluster
from everstep.core.recovering.plans import pause_plan
from everstep.core.world import PodState
from everstep.simulation import QuarantineInMemory, carry_out
from everstep.steps.step_run import StepContext
from tests.backends.conftest import FakeRun
from tests.backends.lab import Lab, Run, effects, uids_of
from tests.backends.verbs import NEVER_ENDS, ORDERS, VERBS
from tests.support.builders import running
from tests.support.patience import HUNG_S

STRANGE = r"demo is not in the cluster database .*everstep adopt demo"
OF_NONE = ("clock", "nodes", "leftovers", "ensure_isolated", "ensure_released")
OF_A_JOB = {name: verb for name, verb in VERBS.items() if name not in OF_NONE}


async def test_books_have_an_identity_that_stays(lab: Lab) -> None:
    first = await lab.backend.identity()
    assert first
    assert await lab.backend.identity() == first


async def test_a_job_of_other_books_is_refused_and_nothing_changes(
    job: Run, subtests: pytest.Subtests
) -> None:
    await job.launch()
    before, done = await job.observe_now(), await effects(job.lab)
    strange = Run(job.lab, slots=job.slots, generation=job.generation, books="other")
    for verb, call in OF_A_JOB.items():
        refused = pytest.raises(WrongCluster, match=STRANGE)
        with subtests.test(verb), refused:
            await call(strange)
    after = await job.observe_now()
    assert (uids_of(after), await effects(job.lab)) == (uids_of(before), done)
    assert after.generation == job.generation


async def test_a_job_that_says_which_books_it_is_in_is_refused_nothing(job: Run) -> None:
    job.books = await job.backend.identity()
    await job.launch()
    await job.again("restart")
    await job.gone()


async def test_an_order_of_a_generation_never_given_is_refused(
    job: Run, subtests: pytest.Subtests
) -> None:
    """A newer copy of these books gave that generation, and made pods that are missing here."""
    await job.launch()
    ahead = Run(job.lab, slots=job.slots, generation=job.generation + 1)
    for verb, call in ORDERS.items():
        ahead_of_us = pytest.raises(
            WrongCluster, match="has job demo up to generation 1, it is at 2"
        )
        with subtests.test(verb), ahead_of_us:
            await call(ahead)
    assert (await job.observe_now()).generation == job.generation


async def test_books_that_are_behind_the_job_give_it_no_generation(job: Run) -> None:
    first = await job.new_generation("launch")
    with pytest.raises(WrongCluster, match="an older copy"):
        await job.backend.ensure_generation(job.ref, "restart", above=first + 1)
    assert (await job.observe_now()).generation == first


async def test_a_key_that_was_answered_in_a_time_the_job_forgot_counts_as_new(job: Run) -> None:
    first = await job.new_generation("launch")
    for _ in range(2):  # who is killed in between asks again
        again = await job.backend.ensure_generation(job.ref, "launch", above=first)
        assert again == first + 1
    assert await job.backend.ensure_generation(job.ref, "launch", above=0) == first + 1


async def test_an_adopted_job_goes_on_above_its_own_generation(job: Run) -> None:
    job.books = "other"
    adoption = await job.backend.ensure_adopted(job.ref, generation=7)
    assert adoption == await job.backend.identity()
    job.books = adoption
    assert (await job.observe_now()).generation == 7
    assert await job.backend.ensure_generation(job.ref, "restart", above=7) == 8


async def test_an_adoption_changes_nothing_for_a_job_of_these_books(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    job.books = await job.backend.identity()
    before = await job.observe_now()
    for _ in range(2):
        adopted = await job.backend.ensure_adopted(job.ref, generation=job.generation)
        assert adopted == ""
    assert uids_of(await job.observe_now()) == uids_of(before)
    await job.new_generation("next")
    await job.stop()
    assert (await job.backend.ensure_fenced(job.fence_order())).done, "nothing is unknown"


@pytest.mark.short_fence
async def test_after_an_adoption_the_fence_takes_its_time_once(job: Run) -> None:
    """The pods of the earlier books are unknown: that none is listed proves nothing."""
    job.books = "other"
    job.env = NEVER_ENDS
    job.books = await job.backend.ensure_adopted(job.ref, generation=3)
    job.generation = await job.backend.ensure_generation(job.ref, "restart", above=3)
    await job.place()
    state = await job.backend.ensure_fenced(job.fence_order())
    assert (state.done, "not in this cluster database" in state.waiting_for) == (False, True)
    began = await job.backend.clock()
    await job.fence()
    assert job.lab.fence_s - 0.1 <= await job.backend.clock() - began < job.lab.fence_s + HUNG_S
    await job.start()
    await job.new_generation("next")
    await job.stop()
    assert (await job.backend.ensure_fenced(job.fence_order())).done, "from now on all are known"


# --- a server whose database was restored from an older copy ---------------------------------------


async def states(job: Run) -> set[PodState]:
    return {pod.state for pod in (await job.observe_now()).pods}


async def test_a_restart_that_was_done_is_found_done_and_the_next_of_its_name_is_a_new_one(
    demo: FakeRun,
) -> None:
    """A job that forgot its first restart counts from one again: the name was answered before."""
    demo.env, name = NEVER_ENDS, "main/recovery-1-in_place-crash"
    await demo.launch()
    await demo.again(name)
    context = StepContext(backend=demo.backend, quarantine=QuarantineInMemory())
    plan = replace(pause_plan(running().state), job=demo.ref, key=name)
    plan = replace(plan, since=await demo.backend.clock())

    forgotten = await carry_out(context, replace(plan, generation=1))
    assert forgotten.generation == 2
    assert await states(demo) == {PodState.RUNNING}, "what it had started runs on"

    adopted = await carry_out(context, replace(plan, generation=2))
    assert adopted.generation == 3
    assert await states(demo) == {PodState.STOPPED}, "and is stopped for the next one"
    late = await carry_out(context, replace(plan, generation=2, since=plan.since + 26.2))
    assert (late.generation, late.stages_s["stop"]) == (3, 0.0)
