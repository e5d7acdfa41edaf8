"""The counters of all jobs: each record once, whatever comes twice, late or again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.chronicle import views
from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.counters import BUCKETS_S
from everstep.chronicle.fleet_totals import (
    ENDED_KEPT,
    JOBS_KEPT,
    NAMES_KEPT,
    FleetTotals,
    JobReport,
    ends,
    summed,
    with_report,
)
from everstep.core.levels import FaultClass
from everstep.core.world import Checkpoint
from tests.support.builders import running, sighting


def job(name: str, at: float, crashes: int, ended: str = "") -> JobReport:
    restarts = {"crash/in_place/success": crashes}
    stages = {"stop": {3: (crashes, crashes * 0.3)}}
    return JobReport(
        key=name, at=at, totals=JobTotals(restarts=restarts, stages=stages, ended=ended)
    )


def test_a_restart_is_counted_when_it_has_ended_and_its_first_step_when_it_is_seen() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    assert job.chronicle.totals.restarts == {}
    job.succeeds()
    assert job.chronicle.totals.restarts == {"crash/in_place/success": 1}
    assert "first_step" not in job.chronicle.totals.stages
    job.report(first_step_at=job.state.now + 7.0)
    (bucket,) = job.chronicle.totals.stages["first_step"]
    assert BUCKETS_S[bucket - 1] < 7.0 <= BUCKETS_S[bucket]


def test_a_step_made_before_the_last_rank_was_started_took_no_time() -> None:
    """A rank may train while the worker still waits for the answers of other agents."""
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds(now=job.state.now + 5.0)
    restarted_at = job.state.now
    job.report(first_step_at=restarted_at - 0.08)
    assert job.record.stages_s["first_step"] == 0.0
    assert job.chronicle.totals.stages["first_step"] == {0: (1, 0.0)}
    assert job.chronicle.starts[-1].first_step_at == restarted_at


@pytest.mark.parametrize(("loaded", "lost"), [(20, 14), (None, None)])
def test_steps_that_were_done_again_are_in_the_totals_and_in_the_status(
    loaded: int | None, lost: int | None
) -> None:
    job = running()
    assert views.status(job.state, job.chronicle)["lost_steps"] == 0
    job.report(step=34, first_step_at=job.state.now + 1.0)
    job.see(sighting(FaultClass.CRASH))
    job.succeeds(resume=None if loaded is None else Checkpoint(step=loaded, path="step-20"))
    job.report(first_step_at=job.state.now + 7.0)
    assert job.chronicle.totals.lost_steps == lost
    assert views.status(job.state, job.chronicle)["lost_steps"] == lost


def test_steps_of_earlier_runs_that_are_done_again_are_in_the_totals() -> None:
    """The newest checkpoint was bad: the second run made no step, the third goes back further."""
    job = running()
    job.report(step=105, first_step_at=job.state.now)
    job.see(sighting(FaultClass.CRASH, at=job.state.now + 9.0))
    job.succeeds(resume=Checkpoint(step=100, path="step-100"))
    job.see(sighting(FaultClass.CRASH, at=job.state.now + 9.0))
    job.succeeds(resume=Checkpoint(step=50, path="step-50"))
    job.report(first_step_at=job.state.now + 1.0)
    totals = job.chronicle.totals
    assert totals.lost_steps == 55
    assert totals.lost_s["crash/again"] == totals.time_s["lost"] > 0.0
    assert sum(totals.time_s.values()) == pytest.approx(
        (job.chronicle.starts[-1].first_step_at or 0.0) - (job.chronicle.created_at or 0.0)
    )


def test_a_pause_of_a_job_whose_restart_is_under_way_is_no_down_time() -> None:
    job = running()
    job.report(step=10, first_step_at=job.state.now)
    job.see(sighting(FaultClass.NODE))
    job.command("pause", reason="a long weekend")
    job.interrupted()
    job.succeeds(now=job.state.now + 3.0)
    job.command("resume")
    job.report("interrupted", now=job.state.now + 200_000.0)
    job.succeeds(now=job.state.now + 5.0)
    job.report(first_step_at=job.state.now + 1.0)
    totals = job.chronicle.totals
    assert totals.time_s["paused"] > 200_000.0
    assert totals.time_s["down"] == sum(totals.lost_s.values()) < 100.0


HOUR_S = 3_600.0


@pytest.mark.parametrize(
    ("fault_age_s", "saved_ago_s", "detect_s"),
    [
        (30.0, None, 30.0),
        (48 * HOUR_S, None, HOUR_S),  # the run began an hour ago
        (48 * HOUR_S, 60.0, 60.0),  # the training went on until it saved, at least
        (30.0, 60.0, 30.0),
        (-5.0, None, 0.0),
        (30.0, -60.0, 30.0),  # the storage's clock is ahead of the cluster's
    ],
)
def test_a_fault_is_detected_from_when_training_may_have_ended_at_most(
    fault_age_s: float, saved_ago_s: float | None, detect_s: float
) -> None:
    """An observer dates a fault from when the code first came: even before the job."""
    job = running()
    began = job.chronicle.starts[-1].at
    job.report(step=1, first_step_at=began, now=began)
    at = began + HOUR_S
    if saved_ago_s is not None:
        saved = Checkpoint(step=90, path="step-90", at=at - saved_ago_s)
        job.report(step=90, checkpoint=saved, now=at - 10.0)
    job.see(sighting(FaultClass.DEVICE, at=at - fault_age_s), now=at)
    assert job.record.stages_s["detect"] == pytest.approx(detect_s)
    job.succeeds(now=at + 5.0)
    job.report(first_step_at=at + 6.0, now=at + 6.0)
    totals = job.chronicle.totals
    assert totals.lost_s["device/down"] == pytest.approx(detect_s + 6.0)
    assert totals.time_s["down"] == totals.lost_s["device/down"]


def test_a_level_that_failed_counts_as_what_it_is_once_that_is_known() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.fails("start.timeout")
    assert [key.split("/")[2] for key in job.chronicle.totals.restarts] == ["downgrade"]


def test_what_a_job_sends_replaces_what_was_known_of_it() -> None:
    totals = FleetTotals()
    for report in (job("a", 1.0, 1), job("a", 2.0, 2), job("b", 1.0, 5), job("a", 2.0, 2)):
        totals = with_report(totals, report)
    assert summed(totals).restarts == {"crash/in_place/success": 7}
    assert summed(totals).stages == {"stop": {3: (7, 2.1)}}


def test_what_arrives_late_changes_nothing() -> None:
    totals = with_report(with_report(FleetTotals(), job("a", 5.0, 3)), job("a", 4.0, 1))
    assert summed(totals).restarts == {"crash/in_place/success": 3}


def test_a_job_that_was_reset_counts_what_it_has_now() -> None:
    totals = with_report(with_report(FleetTotals(), job("a", 5.0, 3)), job("a", 6.0, 1))
    assert summed(totals).restarts == {"crash/in_place/success": 1}


def test_ended_jobs_stay_in_the_sum_and_do_not_grow_it() -> None:
    totals = FleetTotals()
    for n in range(ENDED_KEPT + 50):
        totals = with_report(totals, job(f"job-{n}", float(n), 2, ended="Completed"))
    assert len(totals.jobs) == ENDED_KEPT
    assert summed(totals).restarts == {"crash/in_place/success": 2 * (ENDED_KEPT + 50)}
    assert ends(totals) == {"Completed": ENDED_KEPT + 50}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=30))
def test_the_sum_is_that_of_the_newest_of_each_job(sent: list[tuple[str, int]]) -> None:
    totals, newest = FleetTotals(), dict[str, int]()
    for at, (name, crashes) in enumerate(sent):
        report = job(name, float(at), crashes)
        totals = with_report(with_report(totals, report), replace(report, at=at - 0.5))
        newest[name] = crashes
    assert sum(summed(totals).restarts.values()) == sum(newest.values())


def test_jobs_that_never_report_their_end_are_bounded_and_counted_once() -> None:
    totals = FleetTotals()
    for n in range(JOBS_KEPT + 50):
        totals = with_report(totals, job(f"terminated-{n}", float(n), 1))
    assert len(totals.jobs) == JOBS_KEPT
    assert summed(totals).restarts == {"crash/in_place/success": JOBS_KEPT + 50}
    again = with_report(totals, job("terminated-0", 9e9, 5))
    assert summed(again).restarts == {"crash/in_place/success": JOBS_KEPT + 50}


def test_names_without_end_are_counted_as_other() -> None:
    totals = FleetTotals()
    for n in range(3 * ENDED_KEPT + NAMES_KEPT):
        report = JobTotals(budgets={f"budget-{n}": 1}, restarts={f"a/{n}/b": 2}, ended=f"end {n}")
        totals = with_report(totals, JobReport(key=f"{n}", at=float(n), totals=report))
    earlier = totals.earlier
    assert (len(earlier.budgets), earlier.budgets["other"]) == (NAMES_KEPT + 1, 2 * ENDED_KEPT)
    assert earlier.restarts["other/other/other"] == 4 * ENDED_KEPT
    assert sum(ends(totals).values()) == 3 * ENDED_KEPT + NAMES_KEPT
