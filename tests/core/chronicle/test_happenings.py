"""Events of a job as they happen: for its user, and by name for subscribers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle import happenings
from everstep.chronicle.chronicle import HAPPENINGS_KEPT, Chronicle
from everstep.chronicle.fold import folded
from everstep.core.levels import FaultClass, Step
from everstep.core.loop import lifecycle, next_actions, operators
from everstep.core.loop.job_events import StorageAwaited
from everstep.core.spec import JobSpec
from everstep.core.state import Wait
from everstep.core.waits import WaitReason
from everstep.dialects.modelarts import shapes
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import (
    ScriptedJob,
    fact,
    job_spec,
    outcome,
    restarted,
    running,
    sighting,
)

JOB = modelarts(job_retry=8)
ALL = modelarts(job_retry=8, pod_retry=3, unconditional=True, hang_retry=True)


def names(job: ScriptedJob) -> list[str]:
    return [e["event"] for e in happenings.events(job.chronicle) if e["event"] is not None]


def messages(job: ScriptedJob) -> list[str]:
    return [event["message"] for event in happenings.events(job.chronicle)]


# -- Names ----------------------------------------------------------------------------------------


def hangs() -> ScriptedJob:
    return restarted(ALL, FaultClass.HANG)


def hangs_without_retry() -> ScriptedJob:
    job = running(JOB)
    job.see(sighting(FaultClass.HANG))
    return job


def hangs_once_too_often() -> ScriptedJob:
    job = restarted(ALL, FaultClass.HANG, times=3)
    job.see(sighting(FaultClass.HANG))
    return job


def is_preempted() -> ScriptedJob:
    return restarted(JOB, FaultClass.PREEMPTED)


def completes() -> ScriptedJob:
    job = running(JOB)
    job.report("done")
    return job


def fails() -> ScriptedJob:
    job = running(JOB)
    job.see(sighting(FaultClass.CRASH))
    return job


def is_stopped() -> ScriptedJob:
    job = running(JOB)
    job.command("stop", reason="enough")
    job.interrupted()
    return job


def is_refused() -> ScriptedJob:
    job = ScriptedJob(spec=job_spec(JOB))
    job._advance(next_actions.PlanEnded(outcome=None, refused="model_dir: is in use"))
    return job


def degrades() -> ScriptedJob:
    job = running(ALL)
    job.see(sighting(FaultClass.NODE))
    job.fails("place.none", at=Step.PLACE)
    job.succeeds()
    return job


EVENT_NAMES: Mapping[Callable[[], ScriptedJob], list[str]] = {
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


@pytest.mark.parametrize("way", EVENT_NAMES, ids=lambda way: way.__name__)
def test_each_way_has_the_events_of_modelarts(way: Callable[[], ScriptedJob]) -> None:
    job = way()
    assert names(job) == EVENT_NAMES[way]
    job.chronicle = replace(job.chronicle, wanted_events=happenings.EVENTS)
    assert [notice.event for notice in job.unpublished.notices] == EVENT_NAMES[way]


ONE_EACH: Mapping[Callable[[], ScriptedJob], list[str]] = {
    **EVENT_NAMES,
    hangs: ["JobStarted", "JobRestarted"],
    hangs_once_too_often: ["JobStarted", *["JobRestarted"] * 3, "JobFailed"],
    is_preempted: ["JobStarted", "JobRestarted"],
}


@pytest.mark.parametrize("way", ONE_EACH, ids=lambda way: way.__name__)
def test_where_no_events_are_named_each_incident_has_one_notice(
    way: Callable[[], ScriptedJob],
) -> None:
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
    job = running(ALL)
    job.see(sighting(FaultClass.NODE))
    while job.state.ending is None:
        job.fails("place.none", at=Step.PLACE)
    notice = job.unpublished.notices[-1]
    assert notice.event == "JobFailed"
    assert notice.incident is not None
    tried = [(restart.level, restart.result) for restart in notice.incident.restarts]
    assert tried == [("pod", "downgrade"), ("job", "failed")]
    assert fails().unpublished.notices[-1].incident is None, "no level was tried"


def test_a_notice_of_a_later_incident_is_about_that_one() -> None:
    job = degrades()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    newest = job.unpublished.notices[-1].incident
    assert newest is not None
    assert (newest.number, newest.cls, len(newest.restarts)) == (2, "crash", 1)


def test_a_job_that_waits_for_storage_sends_a_notice_as_the_wait_begins() -> None:
    """It may last for half an hour, and an operator has to mend the storage."""
    job = running()
    job.see(sighting(FaultClass.STORAGE, message="/data is read-only"))
    *_, notice = job.unpublished.notices
    assert (notice.event, notice.level, notice.incident) == ("JobWaiting", "Warning", None)
    assert notice.message == "waiting for the storage to be writable: /data is read-only"
    job.succeeds()
    assert [n.event for n in job.unpublished.notices] == [
        "JobStarted",
        "JobWaiting",
        "JobRestarted",
    ]


def test_a_launch_that_waits_for_its_checkpoints_sends_a_notice_once() -> None:
    """As `submit --again` does where the folder is gone; a later report of the same wait is no news."""
    job = ScriptedJob(spec=job_spec())
    what = "the checkpoints to be there again: out has none"
    wait = Wait(what=what, since=job.state.now, reason=WaitReason.CHECKPOINTS_MISSING)
    assert lifecycle.begins_to_await_storage(job.state, wait)
    awaited = StorageAwaited(at=job.state.now, text=what, waiting_reason=str(wait.reason))
    (event,) = happenings.events(folded(Chronicle(), [awaited]))
    assert (event["event"], event["level"], event["message"]) == (
        "JobWaiting",
        "Warning",
        f"waiting for {what}",
    )
    state = lifecycle.waits(job.state, wait)
    assert not lifecycle.begins_to_await_storage(state, wait)


def test_a_restart_for_storage_announces_its_wait_only_once() -> None:
    job = running()
    job.see(sighting(FaultClass.STORAGE, message="/data is read-only"))
    wait = Wait(what="the storage", since=0.0, reason=WaitReason.STORAGE_UNAVAILABLE)
    assert not lifecycle.begins_to_await_storage(job.state, wait)


def test_the_names_are_the_seven_of_modelarts_and_that_of_a_wait() -> None:
    assert set(happenings.EVENTS) == {*shapes.EVENTS, "JobWaiting"}
    assert {kind.level for kind in happenings.KINDS.values()} == {"Info", "Warning", "Error"}
    assert {kind.source for kind in happenings.KINDS.values()} == {"Job", "Task", "K8S"}


# -- The list -------------------------------------------------------------------------------------


def test_a_life_is_told_in_its_order() -> None:
    job = running(ALL)
    job.see(fact("process.exit", slot=2, rank=2, exit_code=3, exception="ValueError"))
    job.succeeds()
    job.see(sighting(FaultClass.NODE))
    job.succeeds()
    job.report("done")
    events = [(e["level"], e["source"], e["message"]) for e in happenings.events(job.chronicle)]
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
    assert [(level, source) for level, source, _ in events] == [row[:2] for row in beginnings]
    for (*_, message), (*_, beginning) in zip(events, beginnings, strict=True):
        assert message.startswith(beginning)
    numbers = [event["number"] for event in happenings.events(job.chronicle)]
    assert numbers == list(range(1, len(numbers) + 1))


def launched(**options: Any) -> ScriptedJob:
    """A launch whose pre-check took two seconds."""
    job = ScriptedJob(spec=job_spec(JOB))
    ended = outcome(
        job.plan, options.pop("result", "success"), options.pop("step", None), None, **options
    )
    ended = replace(ended, prechecked=(1_001.0, 1_003.0))
    job._advance(next_actions.PlanEnded(outcome=ended))
    return job


def test_a_precheck_is_told_with_its_time() -> None:
    texts = messages(launched())
    assert "worker-0 worker-1 worker-2 worker-3: the pre-check started" in texts
    assert "worker-0 worker-1 worker-2 worker-3: the pre-check passed after 2.0 s" in texts


def test_a_failed_precheck_is_told_for_each_worker() -> None:
    failures = (
        fact("precheck.disk", node="n1", slot=1, hardware=True),
        fact("precheck.dns", node="n2", slot=2),
    )
    job = launched(result="failed", step=Step.PRECHECK, facts=failures)
    precheck_events = [e for e in happenings.events(job.chronicle) if "pre-check" in e["message"]]
    assert [(e["level"], e["message"]) for e in precheck_events[1:]] == [
        ("Error", "worker-1: pre-check disk failed after 2.0 s (n1, hardware)"),
        ("Error", "worker-2: pre-check dns failed after 2.0 s (n2)"),
    ]
    assert not any("passed" in message for message in messages(job))


def test_of_many_workers_the_first_are_named_and_the_others_counted() -> None:
    job = running(ALL, nodes=40)
    job.see(*(fact("process.exit", slot=n, rank=n, exit_code=1) for n in range(40)))
    ends = [e["message"] for e in happenings.events(job.chronicle) if e["source"] == "Task"]
    assert ends == [*(f"worker-{n}: exit code 1" for n in range(8)), "and 32 more workers ended"]


def test_a_level_that_a_budget_refused_is_told() -> None:
    job = running(modelarts(job_retry=8, pod_retry=1))
    for node in ("n1", "n2"):
        job.see(sighting(FaultClass.NODE, node=node))
        job.succeeds()
    assert "level pod refused: quota pod used up" in messages(job)


@pytest.mark.parametrize(
    ("kind", "level"), [("device.healed", "Info"), ("node.up", "Info"), ("device.fault", "Warning")]
)
def test_good_news_are_no_warning(kind: str, level: str) -> None:
    job = running(JOB)
    job.see(fact(kind, node="n2", device=3, severity="warning"))
    assert happenings.events(job.chronicle)[-1]["level"] == level


def test_pauses_are_told() -> None:
    job = running(JOB)
    job.command("pause", reason="a look")
    job.interrupted()
    job.succeeds()
    job.command("resume")
    job.interrupted()
    assert [m for m in messages(job) if m.startswith(("paused", "resumed"))] == [
        "paused: a look",
        "resumed",
    ]


# -- Telling --------------------------------------------------------------------------------------


def test_only_those_that_are_wanted_are_told() -> None:
    spec: JobSpec = replace(job_spec(ALL), events=("JobHanged", "JobCompleted"), topic="urn:nlp")
    job = ScriptedJob(spec=spec).launches()
    job.see(sighting(FaultClass.HANG))
    job.succeeds()
    job.report("done")
    order = job.unpublished
    assert [notice.event for notice in order.notices] == ["JobHanged", "JobCompleted"]
    assert (order.topic, order.first_run) == ("urn:nlp", "r1")
    assert "JobRestarted" in names(job)


def test_what_was_taken_is_not_told_again() -> None:
    job = hangs()
    job.chronicle = replace(job.chronicle, wanted_events=happenings.EVENTS)
    first, second, third = job.unpublished.notices
    job.publishes(notice=second.number)
    assert job.unpublished.notices == (third,)
    job.publishes(notice=first.number)  # somebody who came late
    assert job.unpublished.notices == (third,)
    assert first.number < second.number < third.number


def test_numbers_and_the_run_stay_the_same_over_later_runs_and_phases() -> None:
    spec = job_spec(JOB)
    job = ScriptedJob(
        spec=replace(spec, phases=(spec.phases[0], replace(spec.phases[0], name="two")))
    )
    job.launches()
    before = job.unpublished.notices
    job.report("done")
    job.state = lifecycle.enter_phase(job.state, 1)
    job.state = replace(job.state, job=replace(job.state.job, run="r2"))
    job._advance(next_actions.Begun())
    job.launches()
    order = job.unpublished
    assert order.notices[: len(before)] == before
    assert order.first_run == "r1"
    assert messages(job).count("job demo was created") == 1


def test_a_job_is_created_under_the_id_of_its_workflow_and_not_the_name_in_the_document() -> None:
    spec = replace(job_spec(JOB), name="in-the-document")
    job = ScriptedJob(spec=spec)
    job.launches()
    assert messages(job)[0] == f"job {job.state.job.id} was created"
    assert job.state.job.id != spec.name


def test_what_nobody_takes_is_given_up_with_a_line_in_the_log() -> None:
    job = running(replace(ALL, budgets=(), series=()))
    while job.chronicle.happening_number <= HAPPENINGS_KEPT + 2:
        job.see(sighting(FaultClass.HANG))
        job.succeeds()
    assert len(job.chronicle.happenings) == HAPPENINGS_KEPT
    lines = [entry.text for entry in job.chronicle.entries if "is dropped" in entry.text]
    assert "3 JobStarted" in lines[0]


def given_up(job: ScriptedJob) -> list[str]:
    """The line of run.log after entries were refused for as long as they are kept."""
    lines: dict[int, str] = {}
    while job.chronicle.happening_number <= HAPPENINGS_KEPT + 2:
        job.see(sighting(FaultClass.HANG))
        job.succeeds()
        lines |= {entry.number: entry.text for entry in job.chronicle.entries}
    return [text.split()[2] for text in lines.values() if "is dropped" in text]


def test_what_nobody_wants_to_hear_of_goes_without_a_line_in_the_log() -> None:
    without_end = replace(ALL, budgets=(), series=())
    spec = replace(job_spec(without_end), events=("JobCompleted",))
    assert given_up(ScriptedJob(spec=spec).launches()) == []
    spec = replace(job_spec(without_end), events=("JobHanged",))
    assert {*given_up(ScriptedJob(spec=spec).launches())} == {"JobHanged"}


def test_a_changed_document_wants_to_hear_of_something_else_at_once() -> None:
    job = running(replace(ALL, budgets=(), series=()))
    job.state = operators.respecified(job.state, replace(job.state.spec, events=("JobCompleted",)))
    assert given_up(job) == []
    assert job.unpublished.notices == ()


def test_what_was_taken_goes_without_a_line_in_the_log() -> None:
    job = running(replace(ALL, budgets=(), series=()))
    while job.chronicle.happening_number <= HAPPENINGS_KEPT + 2:
        job.see(sighting(FaultClass.HANG))
        job.succeeds()
        job.publishes(notice=job.unpublished.newest.notice)
    assert not [entry for entry in job.chronicle.entries if "is dropped" in entry.text]
    assert job.unpublished.notices == ()
