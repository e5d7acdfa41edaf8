"""Which spans a job queues, when, and what is left of them."""

from __future__ import annotations

from everstep.chronicle import spans
from everstep.chronicle.chronicle import Chronicle
from everstep.core.levels import FaultClass, Step
from everstep.core.world import AgentWork, slowest
from tests.support.builders import Told, job_spec, running, sighting

LAUNCH = "phase/main/launch/1"


def keys(known: Chronicle) -> list[str]:
    return [span.key for span in known.spans]


def test_an_incident_ends_with_the_first_step_of_what_was_started() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    assert keys(told.chronicle) == [LAUNCH, "phase/main/generation/1"]
    told.succeeds()
    assert keys(told.chronicle)[2:] == ["phase/main/restart/1"]
    told.report(first_step_at=told.state.now + 7.0)
    incident = told.chronicle.spans[-1]
    assert incident.key == "phase/main/incident/1"
    assert incident.ended - incident.began >= 7.0


def test_a_job_that_ends_closes_everything_once() -> None:
    told = running()
    told.report("done")
    assert keys(told.chronicle) == [LAUNCH, "phase/main/generation/1", "phase/main", "job"]


def test_what_was_sent_is_gone_and_what_came_since_is_not() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    newest = told.chronicle.spans[-1].number
    told.succeeds()
    left = spans.sent(told.chronicle, newest)
    assert keys(left) == ["phase/main/restart/1"]
    assert keys(spans.sent(left, newest)) == keys(left)


def test_what_agents_did_goes_out_with_the_restart_and_stays_in_no_record() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    works = (AgentWork(slot=1, node="n1", name="stop", began=1.0, ended=2.0),)
    told.succeeds(works=works)
    assert [span.works for span in told.chronicle.spans] == [(), (), works]
    assert [record.works for record in told.chronicle.records] == [()]


def test_a_launch_has_its_stages_and_what_agents_did_for_it() -> None:
    told = Told(spec=job_spec())
    works = (AgentWork(slot=1, node="n1", name="start", began=1_003.0, ended=1_004.0),)
    told.succeeds(now=1_005.0, stages_s={"place": 3.0, "start": 2.0}, works=works)
    (launch,) = told.chronicle.spans
    assert (launch.key, launch.parent, launch.is_error) == (LAUNCH, "phase/main", False)
    assert (launch.began, launch.ended) == (1_000.0, 1_005.0)
    assert (list(launch.stages_s), launch.works) == (["place", "start"], works)


def test_a_launch_that_failed_is_there_before_the_restart_that_follows() -> None:
    told = Told(spec=job_spec())
    told.fails("node.down", at=Step.START, node="n1")
    (launch,) = told.chronicle.spans
    assert (launch.key, launch.is_error) == (LAUNCH, True)
    told.succeeds()
    assert keys(told.chronicle) == [LAUNCH, "phase/main/restart/1"]


def test_the_slowest_agents_of_each_kind_of_work_are_named() -> None:
    works = [
        AgentWork(slot=slot, node="n", name=name, began=0.0, ended=float(slot % 5))
        for name in ("stop", "start")
        for slot in range(10)
    ]
    kept = slowest(works)
    assert [(work.name, work.slot) for work in kept] == [
        *[("start", slot) for slot in (3, 4, 9)],
        *[("stop", slot) for slot in (3, 4, 9)],
    ]
