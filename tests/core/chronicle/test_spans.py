"""Which spans a job queues, when, and what is left of them."""

from __future__ import annotations

from everstep.chronicle import spans
from everstep.chronicle.chronicle import Chronicle
from everstep.core.levels import FaultClass, Step
from everstep.core.state import Mode
from everstep.core.world import AgentWork, slowest
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, job_spec, running, sighting

LAUNCH = "phase/main/launch/1"


def keys(chronicle: Chronicle) -> list[str]:
    return [span.key for span in chronicle.spans]


def test_an_incident_ends_with_the_first_step_of_what_was_started() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    assert keys(job.chronicle) == [LAUNCH, "phase/main/generation/1"]
    job.succeeds()
    assert keys(job.chronicle)[2:] == ["phase/main/restart/1"]
    job.report(first_step_at=job.state.now + 7.0)
    incident = job.chronicle.spans[-1]
    assert incident.key == "phase/main/incident/1"
    assert incident.ended - incident.began >= 7.0


def test_a_job_that_ends_closes_everything_once() -> None:
    job = running()
    job.report("done")
    assert keys(job.chronicle) == [LAUNCH, "phase/main/generation/1", "phase/main", "job"]


def test_what_was_sent_is_gone_and_what_came_since_is_not() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    newest = job.chronicle.spans[-1].number
    job.succeeds()
    left = spans.sent(job.chronicle, newest)
    assert keys(left) == ["phase/main/restart/1"]
    assert keys(spans.sent(left, newest)) == keys(left)


def test_what_agents_did_goes_out_with_the_restart_and_stays_in_no_record() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    works = (AgentWork(slot=1, node="n1", name="stop", began=1.0, ended=2.0),)
    job.succeeds(works=works)
    assert [span.works for span in job.chronicle.spans] == [(), (), works]
    assert [record.works for record in job.chronicle.records] == [()]


def test_a_launch_has_its_stages_and_what_agents_did_for_it() -> None:
    job = ScriptedJob(spec=job_spec())
    works = (AgentWork(slot=1, node="n1", name="start", began=1_003.0, ended=1_004.0),)
    job.succeeds(now=1_005.0, stages_s={"place": 3.0, "start": 2.0}, works=works)
    (launch,) = job.chronicle.spans
    assert (launch.key, launch.parent, launch.is_error) == (LAUNCH, "phase/main", False)
    assert (launch.began, launch.ended) == (1_000.0, 1_005.0)
    assert (list(launch.stages_s), launch.works) == (["place", "start"], works)


def test_a_launch_that_failed_is_there_before_the_restart_that_follows() -> None:
    job = ScriptedJob(spec=job_spec())
    job.fails("node.down", at=Step.START, node="n1")
    (launch,) = job.chronicle.spans
    assert (launch.key, launch.is_error) == (LAUNCH, True)
    job.succeeds()
    assert keys(job.chronicle) == [LAUNCH, "phase/main/restart/1"]


def test_a_fault_that_is_noted_or_ends_the_job_has_its_decision_and_evidence() -> None:
    job = running(modelarts(job_retry=None))
    job.see(sighting(FaultClass.SUBHEALTH))
    job.see(sighting(FaultClass.CRASH))
    by_name = {span.name: span for span in job.chronicle.spans}
    note, fail = by_name["note subhealth"], by_name["fail crash"]
    assert (note.is_error, fail.is_error) == (False, True)
    assert {note.parent, fail.parent} == {"phase/main"}
    assert "exit_code=1" in fail.evidence[0]
    assert fail.attributes["everstep.level"] == "fail"
    assert keys(job.chronicle)[-2:] == ["phase/main", "job"], "and the job ends after it"


def test_a_note_of_an_old_fault_begins_with_its_phase() -> None:
    """An observer dates a fault from when its code first came: the trace begins with the job."""
    job = running()
    (phase,) = job.chronicle.phases.values()
    job.see(sighting(FaultClass.SUBHEALTH, at=phase.began_at - 86_400.0))
    assert job.chronicle.spans[-1].name == "note subhealth"
    assert job.chronicle.spans[-1].began == phase.began_at


def test_two_notes_of_one_moment_are_two_spans() -> None:
    job = running()
    now = job.state.now + 10.0
    for node in ("n1", "n2"):
        job.see(sighting(FaultClass.SUBHEALTH, node=node, at=now), now=now)
    assert len({*keys(job.chronicle)}) == len(keys(job.chronicle)) == 3


def test_the_last_decision_of_an_incident_is_below_it() -> None:
    job = running(modelarts(job_retry=8, pod_retry=1))
    job.see(sighting(FaultClass.NODE))
    while job.state.mode is Mode.RECOVERING:
        job.fails("place.none", at=Step.PLACE)
    by_name = {span.name: span for span in job.chronicle.spans}
    assert by_name["fail node"].parent == by_name["incident node"].key


def test_a_flood_of_notes_takes_the_place_of_nothing_else() -> None:
    job = running()
    for n in range(2 * spans.SPANS_KEPT):
        job.see(sighting(FaultClass.SUBHEALTH, at=job.state.now, node=f"n{n % 4}"))
    assert len(job.chronicle.spans) == spans.NOTES_KEPT
    assert keys(job.chronicle)[0] == LAUNCH


def test_the_slowest_agents_of_each_kind_of_work_are_named() -> None:
    works = [
        AgentWork(slot=slot, node="n", name=name, began=0.0, ended=float(slot % 5))
        for name in ("stop", "start")
        for slot in range(10)
    ]
    slow_works = slowest(works)
    assert [(work.name, work.slot) for work in slow_works] == [
        *[("start", slot) for slot in (3, 4, 9)],
        *[("stop", slot) for slot in (3, 4, 9)],
    ]
