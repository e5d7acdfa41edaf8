"""A worker may come to a step long after it was ordered: limits of an answer count from its first request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.deciding.decision import DeviceRef, Outcome
from everstep.core.levels import Level, Step
from everstep.core.recovering import recovery
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import STOP_CONFIRM_S, perform
from everstep.steps.step_run import StepContext
from tests.steps.test_keeping_ranks import cluster, launched

GRACE_S = 5.0


@pytest.mark.parametrize(
    ("late", "late_s"), [(Step.STOP, 60.0), (Step.HEAL, 2_000.0), (Step.START, 2_000.0)]
)
async def test_a_step_that_begins_late_has_as_long_as_ever(late: Step, late_s: float) -> None:
    backend = cluster()
    plan, past = await launched(backend)
    await backend.admin.fault("device n1 0 80E01801 heals")
    steps, broken = (Step.STOP, Step.HEAL, Step.PLACE, Step.START), DeviceRef(node="n1", device=0)
    remedy = replace(plan.remedy, steps=steps, heal=(broken,), gives_way_to=(), grace_s=GRACE_S)
    restart = replace(
        plan,
        key="main/recovery-1-planned",
        level=Level.POD,
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


async def test_a_job_whose_time_is_ahead_of_its_cluster_waits_no_longer_for_a_slot() -> None:
    """It takes the server's time where no report of the cluster came: a plan without an outcome, for one."""
    backend = cluster()
    plan, past = await launched(backend)
    restart = replace(
        plan,
        key="main/recovery-1-planned",
        level=Level.IN_PLACE,
        generation=past.generation,
        since=past.now + 3_600.0,
        cursor=past.cursor,
        remedy=replace(
            plan.remedy, steps=(Step.STOP,), grace_s=GRACE_S, recreate=(), gives_way_to=()
        ),
    )
    order = recovery.next_step(recovery.begin(restart))
    assert not isinstance(order, Outcome)
    await backend.admin.fault("node-down n1 partition")
    began = await backend.clock()
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    result = await perform(context, order)
    assert (result.end, result.lost_containers) == ("failed", (1,))
    assert result.now - began == GRACE_S + STOP_CONFIRM_S
