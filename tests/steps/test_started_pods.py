"""Every slot has a node, and one of their pods never gets further, as where its volume is not mounted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from everstep.backends.base import Backend
from everstep.core.deciding.decision import StepOrder
from everstep.core.levels import Step
from everstep.core.recovering import recovery
from everstep.core.waits import WaitKind
from everstep.core.world import Observation, PlaceState
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.support.builders import fact, running

WAITS = WaitKind.AGENT.of("demo-1")


@dataclass
class WithoutAgents:
    """A cluster that gives each slot a node, and whose agents never answer."""

    now: float = 1_000.0

    async def clock(self) -> float:
        return self.now

    async def ensure_generation(self, *_order: Any, **_details: Any) -> int:
        return 2

    async def ensure_placed(self, _order: Any) -> PlaceState:
        return PlaceState(placed=False, pods={}, places=4, wait=WAITS)

    async def observe(self, _job: Any, *, until: float | None, **_details: Any) -> Observation:
        assert until is not None, "nothing else ends this wait"
        self.now = max(self.now + 1.0, until)
        return Observation(now=self.now, cursor="c", generation=2)


async def test_pods_that_have_a_node_get_the_time_of_a_start() -> None:
    job = running(nodes=4)
    job.see(fact("operator.restart", level="job"))
    first = recovery.next_step(recovery.begin(job.plan))
    assert isinstance(first, StepOrder)
    backend = WithoutAgents()
    waits = list[str]()

    async def send_wait(wait: Any) -> None:
        waits.append("" if wait is None else wait.what)

    context = StepContext(
        backend=cast("Backend", backend), quarantine=QuarantineInMemory(), send_wait=send_wait
    )
    result = await perform(context, replace(first, step=Step.PLACE))
    start_s = job.plan.phase.limits.start_s
    assert result.cause is not None
    assert result.cause.kind == "place.none"
    assert result.cause.message == (
        f"each slot has a node, and after {start_s:g} s still waits for {WAITS.sentence}"
    )
    assert waits[0] == WAITS.sentence
    assert start_s <= backend.now - 1_000.0 <= start_s + 5.0
