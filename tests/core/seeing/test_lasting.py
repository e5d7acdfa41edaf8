"""A switch between chips that is down: nothing for 300 s, then its node is sub-healthy for the jobs there."""

from __future__ import annotations

import pytest

from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.core.loop.next_actions import watch_order
from everstep.core.seeing import watching
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.seeing.watching import WaitFor, Watch
from everstep.core.world import Observation
from everstep.dialects.mindcluster.policy import SubHealthy, mindcluster
from everstep.faults.telling import with_meaning
from tests.support.builders import Told, pod, running

SWITCH = "[0x08520003,na,L2,na]"
LASTS_S = 300.0


def job(sub_healthy: SubHealthy = "forceExit") -> Told:
    return running(mindcluster(fault_scheduling="force", sub_healthy=sub_healthy))


def fails(told: Told, after_s: float, *, name: str = "switch", code: str = SWITCH) -> float:
    """A node shows the code; when that began."""
    at = told.state.now + after_s
    fact = Fact(id=f"{name}/{at}", kind="device.fault", at=at, node="n2", code=code)
    assert told.see(with_meaning(fact), now=at).level is Level.NOTE
    return at


def heals(told: Told, after_s: float, *, device: int | None = None) -> None:
    at = told.state.now + after_s
    told.see(Fact(id=f"ok/{at}", kind="device.healed", at=at, node="n2", device=device), now=at)


def watched(told: Told, now: float) -> WaitFor | WatchReport:
    """What the watch does at this time, while nothing else happens."""
    order = watch_order(told.state)
    pods = tuple(pod(slot)._replace(step_at=now, moved_at=now) for slot in order.living)
    seen = Observation(now=now, cursor="9", pods=pods, generation=order.generation)
    found = watching.look(order, Watch(learned=order.learned, has_asked=True), seen)[1]
    assert isinstance(found, WaitFor | WatchReport)
    return found


def due(told: Told, at: float) -> Fact:
    waits = watched(told, at - 1)
    assert isinstance(waits, WaitFor)
    assert waits.until is not None
    assert waits.until <= at
    report = watched(told, at)
    assert isinstance(report, WatchReport)
    (fact,) = report.facts
    assert (fact.at, fact.where, fact.code) == (at, "n2", SWITCH)
    return with_meaning(fact)


@pytest.mark.parametrize(("strategy", "level"), [("forceExit", Level.JOB), ("ignore", Level.NOTE)])
def test_it_is_answered_as_sub_health_once_it_has_lasted(
    strategy: SubHealthy, level: Level
) -> None:
    told = job(strategy)
    at = fails(told, 10) + LASTS_S
    decision = told.see(due(told, at), now=at)
    assert (decision.level, decision.fault.cls) == (level, FaultClass.SUBHEALTH)
    assert "for 300 s" in decision.reason
    assert decision.remedy.isolate == ()
    assert watch_order(told.state).to_come == ()


def test_it_counts_from_its_beginning_however_often_it_is_reported() -> None:
    told = job()
    at = fails(told, 10) + LASTS_S
    fails(told, 100, name="again")
    assert due(told, at).id == f"lasting/n2/{SWITCH}/{at - LASTS_S:.3f}"


def test_one_that_is_over_before_is_never_answered() -> None:
    told = job()
    fails(told, 10)
    heals(told, 5, device=3)
    assert len(watch_order(told.state).to_come) == 1, "a chip that healed is no switch"
    heals(told, 200)
    assert watch_order(told.state).to_come == ()


def test_its_next_failure_counts_anew() -> None:
    told = job()
    fails(told, 10)
    heals(told, 200)
    at = fails(told, 50) + LASTS_S
    due(told, at)


def test_a_link_of_a_chip_is_ignored_however_long_it_lasts() -> None:
    told = job()
    at = told.state.now + 10
    link = Fact(id="l", kind="device.fault", at=at, node="n2", device=1, code="81078603")
    told.see(with_meaning(link), now=at)
    assert watch_order(told.state).to_come == ()


def test_documents_of_other_systems_have_no_such_rule() -> None:
    told = running()
    fails(told, 10)
    assert watch_order(told.state).to_come == ()
