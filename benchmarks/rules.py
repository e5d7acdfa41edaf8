"""What the rules cost: one incident through the pure machine. Whole simulated jobs: `simulation`.

No Temporal, no cluster. Each call is timed on the same values again and again: the
functions are pure, so that nothing has to be set up anew.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision import Decision
from everstep.core.levels import FaultClass
from everstep.core.loop import lifecycle
from everstep.core.loop.next_actions import Decide, Decided, PlanEnded, RunPlan, Watched
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.state import JobState
from tests.support.builders import ScriptedJob, outcome, running, sighting

SIZES = (4, 1_000, 10_000)
SAMPLES = 20
CLASSES = (FaultClass.CRASH, FaultClass.NODE)


def cost_ms(call: Callable[[], object]) -> float:
    """The median of many calls."""
    spent = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1000


def report_of(told: ScriptedJob, cls: FaultClass) -> Watched:
    state = told.state
    fact = sighting(cls, at=state.now)
    report = WatchReport(
        news="facts",
        now=state.now + 1.0,
        cursor=state.cursor,
        learned=state.learned,
        generation=state.generation,
        facts=(fact,),
    )
    return Watched(report=report)


def asked(told: ScriptedJob, seen: Watched) -> tuple[JobState, Decide]:
    state, action, _ = lifecycle.advance(told.state, seen)
    assert isinstance(action, Decide)
    return state, action


def planned(state: JobState, answer: Decision) -> tuple[JobState, RunPlan]:
    state, action, _ = lifecycle.advance(state, Decided(decision=answer))
    assert isinstance(action, RunPlan)
    return state, action


def incident(pods: int, cls: FaultClass) -> None:
    """One row: the four calls between the fact and the watch that follows its recovery."""
    told = running(nodes=pods)
    seen = report_of(told, cls)
    deciding, ask = asked(told, seen)
    answer = decide(ask.inputs)
    recovering, run = planned(deciding, answer)
    ended = PlanEnded(outcome=outcome(run.plan, "success", None, None))
    costs = [
        cost_ms(lambda: lifecycle.advance(told.state, seen)),
        cost_ms(lambda: decide(ask.inputs)),
        cost_ms(lambda: lifecycle.advance(deciding, Decided(decision=answer))),
        cost_ms(lambda: lifecycle.advance(recovering, ended)),
    ]
    cells = "".join(f"{cost:12.3f}" for cost in (*costs, sum(costs)))
    print(f"  {f'{cls}, {pods} pods':<20}{cells}")


def main() -> int:
    print(f"\none incident in the pure machine, ms, median of {SAMPLES} calls")
    titles = ("facts", "decide", "decision", "outcome", "in all")
    print(f"  {'':<20}{''.join(f'{title:>12}' for title in titles)}")
    for pods in SIZES:
        for cls in CLASSES:
            incident(pods, cls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
