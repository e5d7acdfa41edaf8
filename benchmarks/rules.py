"""What the rules cost: one incident through the pure machine, and whole simulated jobs.

No Temporal, no cluster but the fake one. Each call is timed on the same values again and again: the
functions are pure, so that nothing has to be set up anew.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.core import lifecycle
from everstep.core.decide import decide
from everstep.core.decision import Decision
from everstep.core.levels import FaultClass
from everstep.core.lifecycle import Ask, Decided, PlanEnded, RunPlan, Watched
from everstep.core.state import JobState
from everstep.core.watching import WatchReport
from everstep.documents import compile_document
from everstep.simulation import Simulation
from tests.support.builders import Told, outcome, running, sighting
from tests.support.stage import document

SIZES = (4, 1_000)
SAMPLES = 200
CLASSES = (FaultClass.CRASH, FaultClass.NODE)
INCIDENTS = 50
STEPS_APART = 20


def cost_ms(call: Callable[[], object]) -> float:
    """The median of many calls."""
    spent = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1000


def report_of(told: Told, cls: FaultClass) -> Watched:
    state = told.state
    fact = sighting(cls, at=state.now)
    report = WatchReport(
        news="facts",
        now=state.now + 1.0,
        cursor=state.cursor + 1,
        learned=state.learned,
        generation=state.generation,
        facts=(fact,),
    )
    return Watched(report=report)


def asked(told: Told, seen: Watched) -> tuple[JobState, Ask]:
    state, action = lifecycle.advance(told.state, seen)
    assert isinstance(action, Ask)
    return state, action


def planned(state: JobState, answer: Decision) -> tuple[JobState, RunPlan]:
    state, action = lifecycle.advance(state, Decided(decision=answer))
    assert isinstance(action, RunPlan)
    return state, action


def incident(pods: int, cls: FaultClass) -> None:
    """One row: the four calls between the fact and the watch that follows its recovery."""
    told = running(nodes=pods)
    seen = report_of(told, cls)
    deciding, ask = asked(told, seen)
    answer = decide(ask.given)
    recovering, run = planned(deciding, answer)
    ended = PlanEnded(outcome=outcome(run.plan, "success", None, None))
    costs = [
        cost_ms(lambda: lifecycle.advance(told.state, seen)),
        cost_ms(lambda: decide(ask.given)),
        cost_ms(lambda: lifecycle.advance(deciding, Decided(decision=answer))),
        cost_ms(lambda: lifecycle.advance(recovering, ended)),
    ]
    cells = "".join(f"{cost:12.3f}" for cost in (*costs, sum(costs)))
    print(f"  {f'{cls}, {pods} pods':<20}{cells}")


async def simulated(pods: int) -> str:
    """A job that crashes again and again, with a checkpoint in between; a row about it."""
    backend = FakeBackend(FakeSettings(nodes=pods))
    for n in range(INCIDENTS):
        step = n * STEPS_APART + STEPS_APART // 2
        await backend.admin.fault(f"at step {step} of job kill job {n % pods} exit 1")
    spec = compile_document(document(nodes=pods, env={"STEPS": str(INCIDENTS * STEPS_APART)}))
    simulation = Simulation(backend=backend, spec=spec)
    began = time.perf_counter()
    end = await simulation.run()
    spent = time.perf_counter() - began
    records = simulation.state.finished[-1].ledger.recoveries
    assert end.status == "Completed", end.reason
    virtual = simulation.state.now - EPOCH
    return f"{records:>12}{virtual:>12.0f}{spent:>12.3f}{records / spent:>12.0f}"


async def main() -> int:
    print(f"\none incident in the pure machine, ms, median of {SAMPLES} calls")
    titles = ("facts", "decide", "decision", "outcome", "in all")
    print(f"  {'':<20}{''.join(f'{title:>12}' for title in titles)}")
    for pods in SIZES:
        for cls in CLASSES:
            incident(pods, cls)
    print("\nsimulated jobs, a crash every 20 steps")
    columns = ("incidents", "virtual s", "real s", "incidents/s")
    print(f"  {'':<12}{''.join(f'{title:>12}' for title in columns)}")
    for pods in SIZES:
        print(f"  {f'{pods} pods':<12}{await simulated(pods)}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
