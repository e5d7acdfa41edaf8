"""What is told of a job as it happens: to its user, and by name to whoever wants to hear of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle import happenings
from everstep.chronicle.chronicle import HAPPENINGS_KEPT
from everstep.core.levels import FaultClass, Step
from everstep.core.loop import lifecycle
from everstep.core.spec import JobSpec
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import Told, fact, job_spec, outcome, running, sighting

JOB = modelarts(job_retry=8)
ALL = modelarts(job_retry=8, pod_retry=3, unconditional=True, hang_retry=True)


def names(told: Told) -> list[str]:
    return [e["event"] for e in happenings.events(told.chronicle) if e["event"] is not None]


def messages(told: Told) -> list[str]:
    return [event["message"] for event in happenings.events(told.chronicle)]


# -- Names ----------------------------------------------------------------------------------------


def hangs() -> Told:
    told = running(ALL)
    told.see(sighting(FaultClass.HANG))
    told.succeeds()
    return told


def hangs_without_retry() -> Told:
    told = running(JOB)
    told.see(sighting(FaultClass.HANG))
    return told


def hangs_once_too_often() -> Told:
    told = running(ALL)
    for _ in range(3):
        told.see(sighting(FaultClass.HANG))
        told.succeeds()
    told.see(sighting(FaultClass.HANG))
    return told


def is_preempted() -> Told:
    told = running(JOB)
    told.see(sighting(FaultClass.PREEMPTED))
    told.succeeds()
    return told


def completes() -> Told:
    told = running(JOB)
    told.report("done")
    return told


def fails() -> Told:
    told = running(JOB)
    told.see(sighting(FaultClass.CRASH))
    return told


def is_stopped() -> Told:
    told = running(JOB)
    told.command("stop", reason="enough")
    told.interrupted()
    return told


def is_refused() -> Told:
    told = Told(spec=job_spec(JOB))
    told._advance(lifecycle.PlanEnded(outcome=None, refused="model_dir: is in use"))
    return told


def degrades() -> Told:
    told = running(ALL)
    told.see(sighting(FaultClass.NODE))
    told.fails("place.none", at=Step.PLACE)
    told.succeeds()
    return told


NAMED: Mapping[Callable[[], Told], list[str]] = {
    hangs: ["JobStarted", "JobHanged", "JobRestarted"],
    hangs_without_retry: ["JobStarted", "JobHanged"],
    hangs_once_too_often: [
        "JobStarted",
        *["JobHanged", "JobRestarted"] * 3,
        "JobHanged",
        "JobFailed",
    ],
    is_preempted: ["JobStarted", "JobPreempted", "JobRestarted"],
    completes: ["JobStarted", "JobCompleted"],
    fails: ["JobStarted", "JobFailed"],
    is_stopped: ["JobStarted", "JobTerminated"],
    is_refused: ["JobFailed"],
    degrades: ["JobStarted", "JobRestarted"],
}


@pytest.mark.parametrize("way", NAMED, ids=lambda way: way.__name__)
def test_each_way_has_the_events_of_modelarts(way: Callable[[], Told]) -> None:
    told = way()
    assert names(told) == NAMED[way]
    told.chronicle = replace(told.chronicle, wanted_events=happenings.EVENTS)
    assert [notice.event for notice in told.unpublished.notices] == NAMED[way]


ONE_EACH: Mapping[Callable[[], Told], list[str]] = {
    **NAMED,
    hangs: ["JobStarted", "JobRestarted"],
    hangs_once_too_often: ["JobStarted", *["JobRestarted"] * 3, "JobFailed"],
    is_preempted: ["JobStarted", "JobRestarted"],
}


@pytest.mark.parametrize("way", ONE_EACH, ids=lambda way: way.__name__)
def test_where_no_events_are_named_each_incident_has_one_notice(way: Callable[[], Told]) -> None:
    """When it is known what followed; one that is only noted has its own."""
    assert [notice.event for notice in way().unpublished.notices] == ONE_EACH[way]


def test_a_notice_of_a_restart_says_what_its_incident_was() -> None:
    notice = degrades().unpublished.notices[-1]
    assert notice.incident is not None
    assert (notice.incident.phase, notice.incident.number) == ("main", 1)
    assert (notice.incident.cls, notice.incident.node) == ("node", "n1")
    assert [restart.result for restart in notice.incident.restarts] == ["downgrade", "success"]
    assert [restart.level for restart in notice.incident.restarts] == ["pod", "job"]
    first, *_ = completes().unpublished.notices
    assert first.incident is None


def test_a_notice_of_a_failed_job_says_which_levels_were_tried() -> None:
    told = running(ALL)
    told.see(sighting(FaultClass.NODE))
    while told.state.ending is None:
        told.fails("place.none", at=Step.PLACE)
    notice = told.unpublished.notices[-1]
    assert notice.event == "JobFailed"
    assert notice.incident is not None
    tried = [(restart.level, restart.result) for restart in notice.incident.restarts]
    assert tried == [("pod", "downgrade"), ("job", "failed")]
    assert fails().unpublished.notices[-1].incident is None, "no level was tried"


def test_a_notice_of_a_later_incident_is_about_that_one() -> None:
    told = degrades()
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    newest = told.unpublished.notices[-1].incident
    assert newest is not None
    assert (newest.number, newest.cls, len(newest.restarts)) == (2, "crash", 1)


def test_the_names_are_the_seven_of_modelarts() -> None:
    assert set(happenings.EVENTS) == {
        "JobStarted",
        "JobCompleted",
        "JobFailed",
        "JobTerminated",
        "JobRestarted",
        "JobHanged",
        "JobPreempted",
    }
    assert {kind.level for kind in happenings.KINDS.values()} == {"Info", "Warning", "Error"}
    assert {kind.source for kind in happenings.KINDS.values()} == {"Job", "Task", "K8S"}


# -- The list -------------------------------------------------------------------------------------


def test_a_life_is_told_in_its_order() -> None:
    told = running(ALL)
    told.see(fact("process.exit", slot=2, rank=2, exit_code=3, exception="ValueError"))
    told.succeeds()
    told.see(sighting(FaultClass.NODE))
    told.succeeds()
    told.report("done")
    shown = [(e["level"], e["source"], e["message"]) for e in happenings.events(told.chronicle)]
    beginnings = [
        ("Info", "Job", "job demo was created"),
        ("Info", "Job", "phase main is queued for 4 nodes"),
        ("Info", "Job", "running: phase main on 4 nodes, from the beginning"),
        ("Error", "Task", "worker-2: exit code 3: ValueError"),
        ("Warning", "Job", "restart 1, level job: crash of rank 2"),
        ("Info", "Job", "restarted: phase main on 4 nodes"),
        ("Error", "K8S", "restart 2, level pod: node on n1"),
        ("Warning", "K8S", "node n1 is isolated: "),
        ("Info", "Job", "restarted: phase main on 4 nodes"),
        ("Info", "Task", "worker-0 worker-1 worker-2 worker-3: exit code 0"),
        ("Info", "Job", "completed: all ranks ended well"),
    ]
    assert [(level, source) for level, source, _ in shown] == [row[:2] for row in beginnings]
    for (*_, message), (*_, beginning) in zip(shown, beginnings, strict=True):
        assert message.startswith(beginning)
    numbers = [event["number"] for event in happenings.events(told.chronicle)]
    assert numbers == list(range(1, len(numbers) + 1))


def launched(**said: Any) -> Told:
    """A launch whose pre-check took two seconds."""
    told = Told(spec=job_spec(JOB))
    ended = outcome(told.plan, said.pop("result", "success"), said.pop("step", None), None, **said)
    ended = replace(ended, prechecked=(1_001.0, 1_003.0))
    told._advance(lifecycle.PlanEnded(outcome=ended))
    return told


def test_a_precheck_is_told_with_its_time() -> None:
    shown = messages(launched())
    assert "worker-0 worker-1 worker-2 worker-3: the pre-check started" in shown
    assert "worker-0 worker-1 worker-2 worker-3: the pre-check passed after 2.0 s" in shown


def test_a_failed_precheck_is_told_for_each_worker() -> None:
    failures = (
        fact("precheck.disk", node="n1", slot=1, hardware=True),
        fact("precheck.dns", node="n2", slot=2),
    )
    told = launched(result="failed", step=Step.PRECHECK, facts=failures)
    found = [e for e in happenings.events(told.chronicle) if "pre-check" in e["message"]]
    assert [(e["level"], e["message"]) for e in found[1:]] == [
        ("Error", "worker-1: pre-check disk failed after 2.0 s (n1, hardware)"),
        ("Error", "worker-2: pre-check dns failed after 2.0 s (n2)"),
    ]
    assert not any("passed" in message for message in messages(told))


def test_of_many_workers_the_first_are_named_and_the_others_counted() -> None:
    told = running(ALL, nodes=40)
    told.see(*(fact("process.exit", slot=n, rank=n, exit_code=1) for n in range(40)))
    ends = [e["message"] for e in happenings.events(told.chronicle) if e["source"] == "Task"]
    assert ends == [*(f"worker-{n}: exit code 1" for n in range(8)), "and 32 more workers ended"]


def test_a_level_that_a_budget_refused_is_told() -> None:
    told = running(modelarts(job_retry=8, pod_retry=1))
    for node in ("n1", "n2"):
        told.see(sighting(FaultClass.NODE, node=node))
        told.succeeds()
    assert "level pod refused: quota pod used up" in messages(told)


@pytest.mark.parametrize(
    ("kind", "level"), [("device.healed", "Info"), ("node.up", "Info"), ("device.fault", "Warning")]
)
def test_good_news_are_no_warning(kind: str, level: str) -> None:
    told = running(JOB)
    told.see(fact(kind, node="n2", device=3, severity="warning"))
    assert happenings.events(told.chronicle)[-1]["level"] == level


def test_pauses_are_told() -> None:
    told = running(JOB)
    told.command("pause", reason="a look")
    told.interrupted()
    told.succeeds()
    told.command("resume")
    told.interrupted()
    assert [m for m in messages(told) if m.startswith(("paused", "resumed"))] == [
        "paused: a look",
        "resumed",
    ]


# -- Telling --------------------------------------------------------------------------------------


def test_only_those_that_are_wanted_are_told() -> None:
    spec: JobSpec = replace(job_spec(ALL), events=("JobHanged", "JobCompleted"), topic="urn:nlp")
    told = Told(spec=spec).launches()
    told.see(sighting(FaultClass.HANG))
    told.succeeds()
    told.report("done")
    order = told.unpublished
    assert [notice.event for notice in order.notices] == ["JobHanged", "JobCompleted"]
    assert (order.topic, order.first_run) == ("urn:nlp", "r1")
    assert "JobRestarted" in names(told)


def test_what_was_taken_is_not_told_again() -> None:
    told = hangs()
    told.chronicle = replace(told.chronicle, wanted_events=happenings.EVENTS)
    first, second, third = told.unpublished.notices
    told.publishes(notice=second.number)
    assert told.unpublished.notices == (third,)
    told.publishes(notice=first.number)  # somebody who came late
    assert told.unpublished.notices == (third,)
    assert first.number < second.number < third.number


def test_numbers_and_the_run_stay_the_same_over_later_runs_and_phases() -> None:
    spec = job_spec(JOB)
    told = Told(spec=replace(spec, phases=(spec.phases[0], replace(spec.phases[0], name="two"))))
    told.launches()
    before = told.unpublished.notices
    told.report("done")
    told.state = lifecycle.enter_phase(told.state, 1)
    told.state = replace(told.state, job=replace(told.state.job, run="r2"))
    told._advance(lifecycle.Begun())
    told.launches()
    order = told.unpublished
    assert order.notices[: len(before)] == before
    assert order.first_run == "r1"
    assert messages(told).count("job demo was created") == 1


def test_a_job_is_created_under_the_id_of_its_workflow_and_not_the_name_in_the_document() -> None:
    spec = replace(job_spec(JOB), name="in-the-document")
    told = Told(spec=spec)
    told.launches()
    assert messages(told)[0] == f"job {told.state.job.id} was created"
    assert told.state.job.id != spec.name


def test_what_nobody_takes_is_given_up_with_a_line_in_the_log() -> None:
    told = running(replace(ALL, budgets=(), series=()))
    while told.chronicle.happening_number <= HAPPENINGS_KEPT + 2:
        told.see(sighting(FaultClass.HANG))
        told.succeeds()
    assert len(told.chronicle.happenings) == HAPPENINGS_KEPT
    lines = [entry.text for entry in told.chronicle.entries if "is dropped" in entry.text]
    assert "3 JobStarted" in lines[0]


def given_up(told: Told) -> list[str]:
    """What run.log says of it, once nobody took anything for as long as it is kept."""
    lines: dict[int, str] = {}
    while told.chronicle.happening_number <= HAPPENINGS_KEPT + 2:
        told.see(sighting(FaultClass.HANG))
        told.succeeds()
        lines |= {entry.number: entry.text for entry in told.chronicle.entries}
    return [text.split()[2] for text in lines.values() if "is dropped" in text]


def test_what_nobody_wants_to_hear_of_goes_without_a_line_in_the_log() -> None:
    without_end = replace(ALL, budgets=(), series=())
    spec = replace(job_spec(without_end), events=("JobCompleted",))
    assert given_up(Told(spec=spec).launches()) == []
    spec = replace(job_spec(without_end), events=("JobHanged",))
    assert {*given_up(Told(spec=spec).launches())} == {"JobHanged"}


def test_a_changed_document_wants_to_hear_of_something_else_at_once() -> None:
    told = running(replace(ALL, budgets=(), series=()))
    told.state = lifecycle.respecified(
        told.state, replace(told.state.spec, events=("JobCompleted",))
    )
    assert given_up(told) == []
    assert told.unpublished.notices == ()


def test_what_was_taken_goes_without_a_line_in_the_log() -> None:
    told = running(replace(ALL, budgets=(), series=()))
    while told.chronicle.happening_number <= HAPPENINGS_KEPT + 2:
        told.see(sighting(FaultClass.HANG))
        told.succeeds()
        told.publishes(notice=told.unpublished.newest.notice)
    assert not [entry for entry in told.chronicle.entries if "is dropped" in entry.text]
    assert told.unpublished.notices == ()
