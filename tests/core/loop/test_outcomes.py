"""Rules 3 to 6: outcomes, escalation, progress and spacing, series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from everstep.chronicle import record_rows, views
from everstep.core.deciding.remedies import SPACING_S
from everstep.core.levels import FaultClass, Level, Owner, Step
from everstep.core.seeing.progress import progressed
from everstep.core.spec import Policy
from everstep.core.world import Checkpoint
from everstep.dialects import responses
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts import view as modelarts_view
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, fact, running, sighting, with_ladder

_C = FaultClass
PATIENT = Policy(no_progress_restarts=None)
UNCONDITIONAL = modelarts(job_retry=8, unconditional=True, hang_retry=True)


def again(job: ScriptedJob, cls: FaultClass = _C.CRASH) -> Level:
    """The same class once more; its restart succeeds."""
    decision = job.see(sighting(cls))
    if decision.is_executed:
        job.succeeds()
    return decision.level


# -- Rule 3 -------------------------------------------------------------------------------------


def test_a_later_exit_is_a_new_incident() -> None:
    job = running()
    again(job)
    again(job)
    assert [(r.incident, r.result) for r in job.records] == [(1, "success"), (2, "success")]


def test_a_failed_step_goes_one_down_within_the_incident() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.fails("start.timeout", slot=2)
    job.succeeds()
    assert [(r.incident, r.decision.level, r.result) for r in job.records] == [
        (1, Level.IN_PLACE, "downgrade"),
        (1, Level.POD, "success"),
    ]
    assert job.state.incident is None


def test_a_downgrade_keeps_the_fault_and_names_the_level_before() -> None:
    job = running()
    job.see(sighting(_C.DEVICE))
    job.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    third = job.fails("place.none", at=Step.PLACE)
    assert [d.fault.cls for d in job.decisions] == [_C.DEVICE] * 3
    assert [d.instead_of for d in job.decisions] == [None, Level.IN_PLACE, Level.POD]
    assert third.fault.code == "80E01801"


def test_the_first_step_is_filled_in_later() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.succeeds()
    ended = job.record.ended_at or 0.0
    job.report("refresh", first_step_at=ended + 3.0)
    assert job.record.stages_s["first_step"] == 3.0


def test_facts_that_came_meanwhile_are_decided_afterwards_once() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    news = sighting(_C.DEVICE)
    job.succeeds(facts=(news,))
    assert job.decisions[-1].fault.cls is _C.DEVICE
    assert job.decisions[-1].new_incident
    job.succeeds(facts=(news,))
    assert job.decisions[-1].level is Level.NOTE


# -- Rule 4 -------------------------------------------------------------------------------------


def test_the_same_class_without_progress_starts_further_down() -> None:
    job = running(PATIENT)
    assert [again(job) for _ in range(5)] == ["in_place", "pod", "job", "job", "job"]


def test_progress_brings_back_the_gentlest_level() -> None:
    job = running(PATIENT)
    again(job)
    job.saves(10)
    assert again(job) is Level.IN_PLACE


def test_another_class_starts_at_its_own_top() -> None:
    job = running(PATIENT)
    assert (again(job), again(job, _C.HANG)) == (Level.IN_PLACE, Level.SUSPENSION)


@pytest.mark.parametrize(
    "policy",
    [UNCONDITIONAL, mindcluster(fault_scheduling="force", pod_rescheduling=True)],
    ids=["modelarts", "mindcluster"],
)
def test_escalation_is_native_only(policy: Policy) -> None:
    job = running(policy)
    first = again(job, _C.DEVICE_USER)
    assert again(job, _C.DEVICE_USER) is first


def test_what_ends_loops_is_the_number_of_restarts_without_progress() -> None:
    job = running()
    assert [again(job) for _ in range(4)] == ["in_place", "pod", "job", "fail"]
    assert "no progress after 3 restarts" in job.decisions[-1].reason


@pytest.mark.parametrize("cls", [_C.NODE, _C.DEVICE, _C.PREEMPTED, _C.MAINTENANCE, _C.PLANNED])
def test_faults_of_others_do_not_end_the_phase(cls: FaultClass) -> None:
    job = running()
    for number in range(6):
        home = job.state.slots[1].node
        decision = job.see(sighting(cls, node=home, code=f"code-{number}"))
        assert decision.is_executed
        job.succeeds()


# -- Rule 5 -------------------------------------------------------------------------------------


def test_a_newer_checkpoint_is_progress_and_the_same_one_is_not() -> None:
    job = running()
    job.saves(10)
    again(job)
    job.saves(10)
    assert job.state.ledger.no_progress == 1
    job.saves(20)
    assert job.state.ledger.no_progress == 0


def test_progress_ends_series_escalation_and_spacing() -> None:
    job = running(UNCONDITIONAL)
    again(job)
    assert job.state.ledger.series == {"unconditional": 1}
    job.saves(10)
    ledger = job.state.ledger
    assert (ledger.series, ledger.escalation, ledger.spacing) == ({}, {}, 0)


def test_without_checkpoints_a_newer_step_than_ever_is_progress() -> None:
    job = running(checkpoints_path=None)
    job.report("refresh", step=7)
    again(job)
    job.report("refresh", step=7)
    assert job.state.ledger.no_progress == 1
    job.report("refresh", step=8)
    assert job.state.ledger.no_progress == 0


def test_until_a_checkpoint_was_recognised_steps_count() -> None:
    """One crash a day of a job whose checkpoints have unknown names."""
    job = running()
    for day in range(1, 8):
        job.report("refresh", step=1_000 * day, now=job.state.now + 86_400.0)
        assert again(job) is Level.IN_PLACE


def test_once_a_checkpoint_was_recognised_steps_do_not_count_any_more() -> None:
    job = running()
    job.report("refresh", step=7)
    job.saves(5)
    again(job)
    job.report("refresh", step=9)
    assert job.state.ledger.no_progress == 1
    job.saves(6)
    assert job.state.ledger.no_progress == 0


def epoch(number: int) -> Checkpoint:
    return Checkpoint(step=None, number=number, path=f"ckpt/epoch_{number}.pth", at=1.0)


def last(at: float) -> Checkpoint:
    return Checkpoint(step=None, path="ckpt/last.pt", at=at)


@pytest.mark.parametrize("policy", [Policy(), cerebras(max_num_restarts=3)])
@pytest.mark.parametrize(
    ("first", "newer"), [(epoch(3), epoch(4)), (last(10.0), last(20.0))], ids=["epoch", "time"]
)
def test_a_checkpoint_without_a_step_is_progress_once(
    first: Checkpoint, newer: Checkpoint, policy: Policy
) -> None:
    job = running(policy)
    job.saves(first)
    again(job)
    job.saves(first)
    assert job.state.ledger.no_progress == 1
    job.saves(newer)
    assert job.state.ledger.no_progress == 0


def test_an_epoch_that_is_saved_again_is_not_progress_however_far_the_steps_are() -> None:
    job = running()
    job.saves(epoch(1))
    again(job)
    job.report("refresh", step=900, checkpoint=replace(epoch(1), at=99.0))
    assert job.state.ledger.no_progress == 1


def test_a_file_written_over_and_over_is_no_progress_where_the_steps_say_so() -> None:
    """A script that never resumes writes its `last.pt` at every start."""
    job = running()
    job.report("refresh", step=500, checkpoint=last(10.0))
    for start in range(3):
        assert again(job) is not Level.FAIL
        job.report("refresh", step=500, checkpoint=last(20.0 + start))
    assert again(job) is Level.FAIL


@pytest.mark.parametrize("resume", [epoch(3), last(10.0)], ids=["epoch", "time"])
def test_what_a_job_resumes_from_without_a_step_is_not_progress(resume: Checkpoint) -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.succeeds(resume=resume)
    job.saves(resume)
    assert job.state.ledger.no_progress == 1


@pytest.mark.parametrize("saved", [epoch, lambda n: last(float(n))], ids=["epoch", "time"])
@pytest.mark.parametrize("policy", [Policy(), UNCONDITIONAL], ids=["native", "modelarts"])
def test_a_job_that_crashes_as_soon_as_it_has_saved_progresses(
    policy: Policy, saved: Callable[[int], Checkpoint]
) -> None:
    """Its checkpoint is unseen until the next start finds it."""
    job = running(policy)
    for number in range(1, 8):
        assert job.see(sighting(_C.CRASH)).is_executed
        job.succeeds(resume=saved(number))
        assert {*views.status(job.state)["series"].values()} <= {0, 1}


def test_a_restart_that_finds_the_same_checkpoint_again_counts() -> None:
    job = running()
    levels = []
    for _ in range(4):
        levels.append(job.see(sighting(_C.CRASH)).level)
        if levels[-1] is not Level.FAIL:
            job.succeeds(resume=epoch(1))
    assert levels[-1] is Level.FAIL


def test_with_neither_steps_nor_a_checkpoint_recognised_life_counts() -> None:
    job = running()
    again(job)
    job.report("refresh", now=job.state.now + 2_000.0)
    assert job.state.ledger.no_progress == 0


def test_where_only_checkpoints_count_nothing_else_ever_does() -> None:
    job = running(cerebras(max_num_restarts=3))
    again(job)
    job.report("refresh", step=1_000, now=job.state.now + 90_000.0)
    assert job.state.ledger.no_progress == 1


def test_where_nothing_was_ever_seen_healthy_running_is_progress() -> None:
    job = running(checkpoints_path=None)
    again(job)
    job.report("refresh", now=job.state.now + 1_000.0)
    assert job.state.ledger.no_progress == 1
    job.report("refresh", now=job.state.now + 1_000.0)
    assert job.state.ledger.no_progress == 0


def test_silence_is_not_health() -> None:
    job = running(checkpoints_path=None)
    again(job)
    began = job.state.now
    job.report("refresh", now=began + 90_000.0, alive_until=began + 1_700.0)
    assert job.state.ledger.no_progress == 1
    job.report("refresh", now=began + 90_000.0, alive_until=began + 1_800.0)
    assert job.state.ledger.no_progress == 0


def test_unknown_is_not_zero() -> None:
    job = running()
    job.saves(10)
    unknown = replace(job.state, saved=None)
    assert progressed(unknown).ledger == job.state.ledger


def test_the_checkpoint_a_job_resumes_from_is_not_progress_of_its_own() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    resumed = replace(job.state, saved=Checkpoint(step=5, path="ckpt/5"))
    assert progressed(resumed).ledger.no_progress == 0
    job.state = replace(
        job.state,
        ledger=replace(job.state.ledger, mark=replace(job.state.ledger.mark, checkpoint=5)),
    )
    assert progressed(replace(resumed, ledger=job.state.ledger)).ledger.no_progress == 1


def test_restarts_without_progress_are_spaced() -> None:
    job = running(PATIENT)
    waits = []
    for _ in range(8):
        decision = job.see(sighting(_C.CRASH))
        waits.append(decision.remedy.space_s)
        assert (Step.SPACE in decision.remedy.steps) == (decision.remedy.space_s > 0)
        job.succeeds()
    assert waits == [*SPACING_S, 300.0, 300.0]


@pytest.mark.parametrize("cls", [_C.PLANNED, _C.PREEMPTED, _C.MAINTENANCE])
def test_what_nobody_lost_work_by_is_not_spaced(cls: FaultClass) -> None:
    job = running(PATIENT)
    for _ in range(4):
        assert job.see(sighting(cls, node=job.state.slots[1].node)).remedy.space_s == 0
        job.succeeds()


def test_spacing_counts_every_owner() -> None:
    job = running(PATIENT)
    for number in range(2):
        job.see(sighting(_C.DEVICE, code=f"code-{number}"))
        job.succeeds()
    assert job.see(sighting(_C.CRASH)).remedy.space_s == 5.0


# -- Rule 6 -------------------------------------------------------------------------------------


def test_the_fourth_unconditional_failure_in_a_row_fails_the_job() -> None:
    job = running(UNCONDITIONAL)
    assert [again(job) for _ in range(4)] == ["job", "job", "job", "fail"]
    assert job.used["job"] == 3
    assert "3 unconditional restarts in a row" in job.decisions[-1].reason


def test_a_clear_node_fault_is_answered_after_three_unconditional_restarts() -> None:
    job = running(UNCONDITIONAL)
    for _ in range(3):
        again(job)
    assert again(job, _C.NODE) is Level.JOB


def test_the_fourth_suspension_in_a_row_fails_the_job() -> None:
    job = running(UNCONDITIONAL)
    assert [again(job, _C.HANG) for _ in range(4)] == ["suspension"] * 3 + ["fail"]


def test_a_budget_that_ends_before_the_series_ends_the_job() -> None:
    job = running(modelarts(job_retry=2, unconditional=True))
    assert [again(job) for _ in range(3)] == ["job", "job", "fail"]
    assert job.record.result == "quotaExceeded"


OTHER_KINDS: Mapping[str, Callable[[ScriptedJob], object]] = {
    "progress": lambda job: job.saves(10),
    "a recovery owned by infra": lambda job: again(job, _C.DEVICE),
    "a restart that counts in another series": lambda job: again(job, _C.HANG),
    "a planned restart": lambda job: again(job, _C.PLANNED),
    "an in-place restart for a code that users cause": lambda job: again(job, _C.DEVICE_USER),
}


@pytest.mark.parametrize("end", OTHER_KINDS.values(), ids=OTHER_KINDS.keys())
def test_a_series_ends_with(end: Callable[[ScriptedJob], object]) -> None:
    job = running(UNCONDITIONAL)
    for _ in range(3):
        again(job)
    end(job)
    assert again(job) is Level.JOB
    assert job.state.ledger.series == {"unconditional": 1}


def test_a_restart_ends_a_series_also_where_a_gentler_level_had_no_budget() -> None:
    job = running(modelarts(job_retry=8, pod_retry=1, unconditional=True, hang_retry=True))
    levels = [again(job, cls) for cls in (_C.NODE, _C.HANG, _C.HANG)]
    decision = job.see(sighting(_C.NODE, node=job.state.slots[1].node))
    assert [refusal.level for refusal in decision.refused] == [Level.POD]
    job.succeeds()
    levels += [decision.level, *(again(job, _C.HANG) for _ in range(3))]
    assert levels == [Level.POD, *[Level.SUSPENSION] * 2, Level.JOB, *[Level.SUSPENSION] * 3]


def test_suspensions_with_exits_in_between_are_never_three_in_a_row() -> None:
    job = running(UNCONDITIONAL)
    levels = [again(job, cls) for _ in range(4) for cls in (_C.HANG, _C.CRASH)]
    assert levels == [Level.SUSPENSION, Level.JOB] * 4
    assert job.state.ledger.series == {"unconditional": 1}


def test_what_is_only_noted_comes_between_nothing() -> None:
    job = running(UNCONDITIONAL)
    for _ in range(3):
        again(job)
        job.see(sighting(_C.SUBHEALTH))
    assert again(job) is Level.FAIL


def test_a_restart_that_is_tried_again_comes_between_nothing() -> None:
    job = running(UNCONDITIONAL)
    for count in (1, 2, 3):
        job.see(sighting(_C.CRASH))
        job.loses_outcome()
        job.finds(started=False, generation=job.state.generation)
        assert job.state.ledger.series == {"unconditional": count}
        job.succeeds()
    assert again(job) is Level.FAIL


def test_a_series_goes_on_when_the_restart_itself_falls_down_its_ladder() -> None:
    job = running(UNCONDITIONAL)
    for _ in range(2):
        again(job, _C.HANG)
    job.see(sighting(_C.HANG))
    job.fails("agent.unreachable", at=Step.STOP, slot=2)
    assert job.record.decision.level in (Level.POD, Level.JOB)
    job.succeeds()
    assert job.state.ledger.series["suspension"] == 3
    assert again(job, _C.HANG) is Level.FAIL


# -- The last level ------------------------------------------------------------------------------


def test_a_level_that_fails_with_none_left_has_failed_and_says_what_was_waited_for() -> None:
    job = running(UNCONDITIONAL)
    job.see(sighting(_C.NODE))
    waited = "no place for slot 1 within 1800 s"
    job.fails("place.none", at=Step.PLACE, message=waited)
    row = responses.record(job.record)
    assert (row["recover_result"], waited in row["end_reason"]) == ("failed", True)
    assert waited in record_rows.story(row)
    (run,) = modelarts_view.running_records(job.chronicle)
    assert run["end_reason"] == row["end_reason"]
    assert run["recover_records"][-1]["recover_result"] == "failed"


def test_a_level_has_failed_too_where_a_budget_refuses_the_next() -> None:
    job = running(modelarts(job_retry=0, pod_retry=1))
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE, message="no place")
    assert [r.result for r in job.records] == ["failed", "quotaExceeded"]
    assert [r.end_reason is None for r in job.records] == [False, True]


def test_a_level_with_another_below_it_is_a_downgrade_and_ended_nothing() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE, message="no place")
    first = job.records[0]
    assert (first.result, first.end_reason) == ("downgrade", None)


def test_a_job_that_fails_of_something_else_leaves_an_earlier_level_as_it_was() -> None:
    job = running(UNCONDITIONAL)
    for _ in range(3):
        again(job)
    assert again(job) is Level.FAIL
    assert [(r.result, r.end_reason) for r in job.records] == [("success", None)] * 3


def test_only_faults_of_users_and_unknown_ones_are_counted() -> None:
    job = running(UNCONDITIONAL)
    decision = job.see(sighting(_C.NODE))
    assert (decision.fault.owner, decision.counts) == (Owner.INFRA, ())


def test_a_failed_pod_level_that_falls_to_job_does_not_count() -> None:
    job = running(with_ladder(UNCONDITIONAL, _C.CRASH, Level.POD, Level.JOB))
    job.see(fact("process.exit", slot=1))
    assert job.fails("place.none", at=Step.PLACE).level is Level.JOB
    assert job.decisions[-1].counts == ()
