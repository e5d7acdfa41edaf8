"""A slot falls silent in the middle of a restart, and nothing else is seen of it: its agent is stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.core.deciding.decision import Outcome, StepOrder
from everstep.core.levels import Level, Step
from everstep.core.recovering import recovery
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.steps.test_keeping_ranks import cluster, launched

STEPS = (Step.STOP, Step.PRECHECK, Step.RESUME, Step.START)


async def order_of(step: Step, backend: FakeBackend, context: StepContext) -> StepOrder:
    """The order for this step of a restart in place, with all steps before it carried out."""
    plan, past = await launched(backend)
    restart = replace(
        plan,
        key="main/recovery-1-in_place-crash",
        level=Level.IN_PLACE,
        generation=past.generation,
        since=past.now,
        cursor=past.cursor,
        remedy=replace(plan.remedy, steps=STEPS, recreate=()),
    )
    progress: recovery.PlanProgress | Outcome = recovery.begin(restart)
    while isinstance(progress, recovery.PlanProgress):
        order = recovery.next_step(progress)
        assert not isinstance(order, Outcome)
        if order.step is step:
            return order
        progress = recovery.after(progress, await perform(context, order))
    raise AssertionError(progress.cause)


@pytest.mark.parametrize("step", [Step.PRECHECK, Step.RESUME])
async def test_a_silent_slot_fails_the_step_after_the_time_of_a_start(step: Step) -> None:
    """Its pod is then replaced, as that of a slot which does not confirm its end."""
    backend = cluster()
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    order = await order_of(step, backend, context)
    await backend.admin.fault("silence n0")
    result = await perform(context, order)
    assert (result.end, result.lost_containers) == ("failed", (0,))
    assert result.cause is not None
    assert (result.cause.kind, result.cause.slot) == ("agent.unreachable", 0)
    assert result.cause.message == "slot 0 has not answered for 1200 s"


async def test_a_slot_that_fell_silent_a_moment_ago_is_waited_for() -> None:
    """The time of a start counts for each slot by itself."""
    backend = cluster()
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    order = await order_of(Step.PRECHECK, backend, context)
    await backend.admin.fault("silence n1")
    performing = asyncio.ensure_future(perform(context, order))
    await asyncio.sleep(0)
    await backend.admin.advance(order.plan.phase.limits.start_s - 1.0)
    await backend.admin.fault("silence n0")
    result = await performing
    assert (result.end, result.lost_containers) == ("failed", (1,))


async def test_a_step_waits_on_while_most_slots_are_silent() -> None:
    """Then the way to them is broken: nothing says that they are."""
    backend = cluster()
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    order = await order_of(Step.PRECHECK, backend, context)
    for node in ("n0", "n1", "n2"):
        await backend.admin.fault(f"silence {node}")
    performing = asyncio.ensure_future(perform(context, order))
    await asyncio.sleep(0)
    await backend.admin.advance(100 * order.plan.phase.limits.start_s)
    for node in ("n0", "n1", "n2"):
        await backend.admin.fault(f"unsilence {node}")
    result = await performing
    assert result.end == "done"
