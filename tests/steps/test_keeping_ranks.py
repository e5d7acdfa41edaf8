"""A plan that keeps ranks, carried out step by step in the cluster in memory."""

from __future__ import annotations

from dataclasses import replace

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.deciding.decision import Outcome, Plan
from everstep.core.levels import Level, Step
from everstep.core.recovering import recovery
from everstep.core.recovering.plans import launch_plan
from everstep.core.world import PodState, PodView
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.support.builders import running

ALL = (0, 1, 2, 3)


async def carried_out(backend: FakeBackend, plan: Plan, *, times: int = 1) -> Outcome:
    """What the plan comes to, when every step is carried out so often."""
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    progress: recovery.PlanProgress | Outcome = recovery.begin(plan)
    while isinstance(progress, recovery.PlanProgress):
        order = recovery.next_step(progress)
        if isinstance(order, Outcome):
            return order
        results = [await perform(context, order) for _ in range(times)]
        progress = recovery.after(progress, results[-1])
    return progress


async def launched(backend: FakeBackend) -> tuple[Plan, Outcome]:
    """The plan of a first start, and what it came to."""
    plan = launch_plan(running().state)
    plan = replace(plan, generation=0, cursor="", since=await backend.clock())
    outcome = await carried_out(backend, plan)
    assert outcome.result == "success", outcome.cause
    return plan, outcome


def keeping(plan: Plan, past: Outcome, *keep: int) -> Plan:
    return replace(
        plan,
        key="main/recovery-1-process-crash",
        title="restart 1",
        level=Level.PROCESS,
        generation=past.generation,
        since=past.now,
        cursor=past.cursor,
        remedy=replace(plan.remedy, steps=(Step.STOP, Step.RESUME, Step.START), recreate=()),
        places=None,
        keep=keep,
        hold_s=10.0,
    )


async def pods(backend: FakeBackend, plan: Plan) -> tuple[PodView, ...]:
    return (await backend.observe(plan.job, cursor="", until=0.0, wait_s=0.0)).pods


async def trained(backend: FakeBackend, plan: Plan, past: Outcome, *, for_s: float) -> None:
    """Let the job train for so long."""
    cursor, until = past.cursor, past.now + for_s
    while await backend.clock() < until:
        observation = await backend.observe(plan.job, cursor=cursor, until=until, wait_s=for_s)
        cursor = observation.cursor


def cluster() -> FakeBackend:
    return FakeBackend(FakeSettings(nodes=5, devices=8))


async def test_ranks_that_a_plan_keeps_go_on_and_the_others_begin_anew() -> None:
    for times in (1, 2):
        backend = cluster()
        plan, past = await launched(backend)
        plan = keeping(plan, past, 0, 1, 3)
        outcome = await carried_out(backend, plan, times=times)
        assert (outcome.result, outcome.generation) == ("success", 2)
        pods_now = await pods(backend, plan)
        assert [pod.older_ranks for pod in pods_now] == [((0, 1),), ((1, 1),), (), ((3, 1),)]
        assert {pod.state for pod in pods_now} == {PodState.RUNNING}


async def test_a_rank_that_had_ended_is_started_again_beside_the_others() -> None:
    backend = cluster()
    plan, past = await launched(backend)
    await backend.admin.fault(f"kill {plan.job.id} 2")
    outcome = await carried_out(backend, keeping(plan, past, *ALL))
    assert (outcome.result, outcome.kept_ranks) == ("success", (0, 1, 3))


async def test_ranks_that_go_on_have_lost_no_step() -> None:
    backend = cluster()
    plan, past = await launched(backend)
    await trained(backend, plan, past, for_s=65.0)  # its newest checkpoint is of step 60
    outcome = await carried_out(backend, keeping(plan, past, *ALL))
    assert outcome.snapshot is not None
    assert outcome.snapshot.step > 60
    await trained(backend, plan, outcome, for_s=1.0)
    steps = [pod.run.step for pod in await pods(backend, plan)]
    assert min(step or 0 for step in steps) > outcome.snapshot.step


async def test_a_rank_that_had_ended_makes_a_stop_fail_that_has_to_keep_all() -> None:
    backend = cluster()
    plan, past = await launched(backend)
    await backend.admin.fault(f"kill {plan.job.id} 2")
    plan = replace(keeping(plan, past, *ALL), level=Level.PROCESS_ONLINE)
    outcome = await carried_out(backend, plan)
    assert (outcome.result, outcome.step) == ("failed", Step.STOP)
    assert outcome.cause is not None
    assert outcome.cause.message == "rank 2 did not answer within 10 s, or has ended"


async def test_the_next_level_keeps_nobody_whom_a_failed_one_had_kept() -> None:
    backend = cluster()
    plan, past = await launched(backend)
    await backend.admin.fault(f"kill {plan.job.id} 2")
    failed = await carried_out(backend, keeping(plan, past, *ALL))
    coarser = replace(keeping(plan, failed), key="main/recovery-2-in_place-crash")
    outcome = await carried_out(backend, coarser)
    assert (outcome.result, outcome.generation) == ("success", 3)
    assert {pod.older_ranks for pod in await pods(backend, coarser)} == {()}
