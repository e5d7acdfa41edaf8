"""A worker may come to a step long after it was ordered: limits of an answer count from its first request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.deciding.decision import Outcome
from everstep.core.levels import Level, Step
from everstep.core.recovering import recovery
from everstep.simulation import QuarantineInMemory
from everstep.steps.looking import StepContext
from everstep.steps.perform import perform
from tests.steps.test_keeping_ranks import cluster, launched

GRACE_S = 5.0


@pytest.mark.parametrize(("late", "late_s"), [(Step.STOP, 60.0), (Step.START, 2_000.0)])
async def test_a_step_that_begins_late_has_as_long_as_ever(late: Step, late_s: float) -> None:
    backend = cluster()
    plan, past = await launched(backend)
    remedy = replace(plan.remedy, steps=(Step.STOP, Step.PLACE, Step.START), grace_s=GRACE_S)
    restart = replace(
        plan,
        key="main/recovery-1-planned",
        level=Level.JOB,
        generation=past.generation,
        since=past.now,
        cursor=past.cursor,
        remedy=replace(remedy, recreate=(3,)),
    )
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    progress: recovery.PlanProgress | Outcome = recovery.begin(restart)
    while isinstance(progress, recovery.PlanProgress):
        order = recovery.next_step(progress)
        if isinstance(order, Outcome):
            break
        if order.step is late:
            await backend.admin.advance(late_s)
        result = await perform(context, order)
        assert result.end == "done", (order.step, result.cause)
        progress = recovery.after(progress, result)
