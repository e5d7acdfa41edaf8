"""A document that wants fewer nodes: the slots that it gives up keep nothing waiting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from everstep.backends.base import Backend
from everstep.core.deciding.decision import StepOrder
from everstep.core.levels import Step
from everstep.core.loop import operators
from everstep.core.recovering import recovery
from everstep.core.world import Observation, PlaceState, StopState
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.support.builders import fact, running

SILENT = 3


@dataclass
class SilentSlot:
    """A cluster in which one slot never answers, and which has a place for one."""

    now: float = 1_000.0

    async def clock(self) -> float:
        return self.now

    async def ensure_generation(self, *_order: Any, **_details: Any) -> int:
        return 2

    async def ensure_stopped(self, _order: Any) -> StopState:
        return StopState(stopped=(0, 1, 2), pending=(SILENT,))

    async def ensure_placed(self, _order: Any) -> PlaceState:
        return PlaceState(placed=False, pods={}, places=1)

    async def observe(self, _job: Any, *, until: float | None, **_details: Any) -> Observation:
        self.now = max(self.now + 1.0, until or 0.0)
        return Observation(now=self.now, cursor="c", generation=2)


def first_step_of_a_smaller_job() -> StepOrder:
    job = running(nodes=4)
    phase = replace(job.spec.phases[0], nodes=2, nodes_min=2)
    job.state = operators.respecified(job.state, replace(job.spec, phases=(phase,)))
    job.see(fact("operator.restart", level="job"))
    order = recovery.next_step(recovery.begin(job.plan))
    assert isinstance(order, StepOrder)
    return order


def context() -> StepContext:
    return StepContext(backend=cast("Backend", SilentSlot()), quarantine=QuarantineInMemory())


async def test_a_slot_that_is_given_up_need_not_confirm_its_end() -> None:
    order = first_step_of_a_smaller_job()
    assert order.step is Step.STOP
    result = await perform(context(), order)
    assert (result.end, result.cause) == ("done", None)


async def test_too_few_places_are_counted_by_what_the_document_wants_now() -> None:
    order = replace(first_step_of_a_smaller_job(), step=Step.PLACE)
    result = await perform(context(), order)
    assert result.cause is not None
    assert result.cause.message.startswith("only 1 of 2 slots found a place")
