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
from everstep.faults.meanings import with_meaning
from tests.support.builders import ScriptedJob, pod, pod_with, running

SWITCH = "[0x08520003,na,L2,na]"
LASTS_S = 300.0


def mindcluster_job(sub_healthy: SubHealthy = "forceExit") -> ScriptedJob:
    return running(mindcluster(fault_scheduling="force", sub_healthy=sub_healthy))


def fails(job: ScriptedJob, after_s: float, *, name: str = "switch", code: str = SWITCH) -> float:
    """A node shows the code; when that began."""
    at = job.state.now + after_s
    fact = Fact(id=f"{name}/{at}", kind="device.fault", at=at, node="n2", code=code)
    assert job.see(with_meaning(fact), now=at).level is Level.NOTE
    return at


def heals(job: ScriptedJob, after_s: float, *, device: int | None = None) -> None:
    at = job.state.now + after_s
    job.see(Fact(id=f"ok/{at}", kind="device.healed", at=at, node="n2", device=device), now=at)


def watched(job: ScriptedJob, now: float) -> WaitFor | WatchReport:
    """What the watch does at this time, while nothing else happens."""
    order = watch_order(job.state)
    pods = tuple(pod_with(pod(slot), step_at=now, moved_at=now) for slot in order.active)
    observation = Observation(now=now, cursor="9", pods=pods, generation=order.generation)
    watch_result = watching.check(
        order, Watch(learned=order.learned, has_polled=True), observation
    )[1]
    assert isinstance(watch_result, WaitFor | WatchReport)
    return watch_result


def due(job: ScriptedJob, at: float) -> Fact:
    waits = watched(job, at - 1)
    assert isinstance(waits, WaitFor)
    assert waits.until is not None
    assert waits.until <= at
    report = watched(job, at)
    assert isinstance(report, WatchReport)
    (fact,) = report.facts
    assert (fact.at, fact.where, fact.code) == (at, "n2", SWITCH)
    return with_meaning(fact)


@pytest.mark.parametrize(("strategy", "level"), [("forceExit", Level.JOB), ("ignore", Level.NOTE)])
def test_it_is_answered_as_sub_health_once_it_has_lasted(
    strategy: SubHealthy, level: Level
) -> None:
    job = mindcluster_job(strategy)
    at = fails(job, 10) + LASTS_S
    decision = job.see(due(job, at), now=at)
    assert (decision.level, decision.fault.cls) == (level, FaultClass.SUBHEALTH)
    assert "for 300 s" in decision.reason
    assert decision.remedy.isolate == ()
    assert watch_order(job.state).to_come == ()


def test_it_counts_from_its_beginning_however_often_it_is_reported() -> None:
    job = mindcluster_job()
    at = fails(job, 10) + LASTS_S
    fails(job, 100, name="again")
    assert due(job, at).id == f"lasting/n2/{SWITCH}/{at - LASTS_S:.3f}"


def test_one_that_is_over_before_is_never_answered() -> None:
    job = mindcluster_job()
    fails(job, 10)
    heals(job, 5, device=3)
    assert len(watch_order(job.state).to_come) == 1, "a chip that healed is no switch"
    heals(job, 200)
    assert watch_order(job.state).to_come == ()


def test_its_next_failure_counts_anew() -> None:
    job = mindcluster_job()
    fails(job, 10)
    heals(job, 200)
    at = fails(job, 50) + LASTS_S
    due(job, at)


def test_a_link_of_a_chip_is_ignored_however_long_it_lasts() -> None:
    job = mindcluster_job()
    at = job.state.now + 10
    link = Fact(id="l", kind="device.fault", at=at, node="n2", device=1, code="81078603")
    job.see(with_meaning(link), now=at)
    assert watch_order(job.state).to_come == ()


def test_documents_of_other_systems_have_no_such_rule() -> None:
    job = running()
    fails(job, 10)
    assert watch_order(job.state).to_come == ()
