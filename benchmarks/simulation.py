"""What a simulated incident costs: whole jobs that crash again and again, on the fake cluster alone.

The processor's time is what counts: the machine may have other work to do. Most of it is the simulated
cluster's, which stops and starts every rank.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from dataclasses import dataclass

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.levels import Level
from everstep.dialects.registry import compile_document
from everstep.simulation import Simulation
from tests.support.stage import document

SIZES = (4, 1_000)
ROUNDS = 5
INCIDENTS = 50
STEPS_APART = 20
GOAL = 50.0
"""Incidents a second, of the largest job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one incident, in ms."""

    processor: float
    real: float


async def simulated(pods: int) -> Cost:
    """A job whose ranks crash in turn, each time after a checkpoint."""
    backend = FakeBackend(FakeSettings(nodes=pods))
    for n in range(INCIDENTS):
        step = n * STEPS_APART + STEPS_APART // 2
        await backend.admin.fault(f"at step {step} of job kill job {n % pods} exit 1")
    spec = compile_document(document(nodes=pods, env={"STEPS": str(INCIDENTS * STEPS_APART)}))
    simulation = Simulation(backend=backend, spec=spec)
    processor, real = time.process_time(), time.perf_counter()
    end = await simulation.run()
    processor, real = time.process_time() - processor, time.perf_counter() - real
    assert end.status == "Completed", end.reason
    ledger = simulation.state.finished[-1].ledger
    assert ledger.recoveries == INCIDENTS
    assert {record.decision.level for record in simulation.chronicle.records} == {Level.IN_PLACE}
    return Cost(processor=processor / INCIDENTS * 1000, real=real / INCIDENTS * 1000)


def row(name: str, costs: list[float]) -> str:
    cells = "".join(f"{cost:10.2f}" for cost in (statistics.median(costs), min(costs), max(costs)))
    return f"  {name:<28}{cells}{1000 / statistics.median(costs):14.0f}"


async def measured(pods: int) -> float:
    """Two rows; incidents per second of the processor's time."""
    costs = [await simulated(pods) for _ in range(ROUNDS)]
    processor = [cost.processor for cost in costs]
    print(row(f"{pods} pods, processor", processor))
    print(row(f"{pods} pods, real time", [cost.real for cost in costs]))
    return 1000 / statistics.median(processor)


async def main() -> int:
    gc.freeze()  # as worker.py does
    print(f"\nms per simulated incident, {ROUNDS} jobs of {INCIDENTS} crashes each")
    print(f"  {'':<28}{'median':>10}{'min':>10}{'max':>10}{'incidents/s':>14}")
    rates = [await measured(pods) for pods in SIZES]
    is_met = rates[-1] >= GOAL
    print(f"  goal at {SIZES[-1]} pods: {GOAL:.0f} incidents/s, {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
