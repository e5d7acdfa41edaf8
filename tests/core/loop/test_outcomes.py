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
from tests.support.builders import Told, fact, running, sighting, with_ladder

_C = FaultClass
PATIENT = Policy(no_progress_restarts=None)
UNCONDITIONAL = modelarts(job_retry=8, unconditional=True, hang_retry=True)


def again(told: Told, cls: FaultClass = _C.CRASH) -> Level:
    """The same class once more; its restart succeeds."""
    decision = told.see(sighting(cls))
    if decision.is_executed:
        told.succeeds()
    return decision.level


# -- Rule 3 -------------------------------------------------------------------------------------


def test_a_later_exit_is_a_new_incident() -> None:
    told = running()
    again(told)
    again(told)
    assert [(r.incident, r.result) for r in told.records] == [(1, "success"), (2, "success")]


def test_a_failed_step_goes_one_down_within_the_incident() -> None:
    told = running()
    told.see(sighting(_C.CRASH))
    told.fails("start.timeout", slot=2)
    told.succeeds()
    assert [(r.incident, r.decision.level, r.result) for r in told.records] == [
        (1, Level.IN_PLACE, "downgrade"),
        (1, Level.POD, "success"),
    ]
    assert told.state.incident is None


def test_a_downgrade_keeps_the_fault_and_names_the_level_before() -> None:
    told = running()
    told.see(sighting(_C.DEVICE))
    told.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    third = told.fails("place.none", at=Step.PLACE)
    assert [d.fault.cls for d in told.decisions] == [_C.DEVICE] * 3
    assert [d.instead_of for d in told.decisions] == [None, Level.IN_PLACE, Level.POD]
    assert third.fault.code == "80E01801"


def test_the_first_step_is_filled_in_later() -> None:
    told = running()
    told.see(sighting(_C.CRASH))
    told.succeeds()
    ended = told.record.ended_at or 0.0
    told.report("refresh", first_step_at=ended + 3.0)
    assert told.record.stages_s["first_step"] == 3.0


def test_facts_that_came_meanwhile_are_decided_afterwards_once() -> None:
    told = running()
    told.see(sighting(_C.CRASH))
    news = sighting(_C.DEVICE)
    told.succeeds(facts=(news,))
    assert told.decisions[-1].fault.cls is _C.DEVICE
    assert told.decisions[-1].new_incident
    told.succeeds(facts=(news,))
    assert told.decisions[-1].level is Level.NOTE


# -- Rule 4 -------------------------------------------------------------------------------------


def test_the_same_class_without_progress_starts_further_down() -> None:
    told = running(PATIENT)
    assert [again(told) for _ in range(5)] == ["in_place", "pod", "job", "job", "job"]


def test_progress_brings_back_the_gentlest_level() -> None:
    told = running(PATIENT)
    again(told)
    told.saves(10)
    assert again(told) is Level.IN_PLACE


def test_another_class_starts_at_its_own_top() -> None:
    told = running(PATIENT)
    assert (again(told), again(told, _C.HANG)) == (Level.IN_PLACE, Level.SUSPENSION)


@pytest.mark.parametrize(
    "policy",
    [UNCONDITIONAL, mindcluster(fault_scheduling="force", pod_rescheduling=True)],
    ids=["modelarts", "mindcluster"],
)
def test_escalation_is_native_only(policy: Policy) -> None:
    told = running(policy)
    first = again(told, _C.DEVICE_USER)
    assert again(told, _C.DEVICE_USER) is first


def test_what_ends_loops_is_the_number_of_restarts_without_progress() -> None:
    told = running()
    assert [again(told) for _ in range(4)] == ["in_place", "pod", "job", "fail"]
    assert "no progress after 3 restarts" in told.decisions[-1].reason


@pytest.mark.parametrize("cls", [_C.NODE, _C.DEVICE, _C.PREEMPTED, _C.MAINTENANCE, _C.PLANNED])
def test_faults_of_others_do_not_end_the_phase(cls: FaultClass) -> None:
    told = running()
    for number in range(6):
        home = told.state.slots[1].node
        decision = told.see(sighting(cls, node=home, code=f"code-{number}"))
        assert decision.is_executed
        told.succeeds()


# -- Rule 5 -------------------------------------------------------------------------------------


def test_a_newer_checkpoint_is_progress_and_the_same_one_is_not() -> None:
    told = running()
    told.saves(10)
    again(told)
    told.saves(10)
    assert told.state.ledger.no_progress == 1
    told.saves(20)
    assert told.state.ledger.no_progress == 0


def test_progress_ends_series_escalation_and_spacing() -> None:
    told = running(UNCONDITIONAL)
    again(told)
    assert told.state.ledger.series == {"unconditional": 1}
    told.saves(10)
    ledger = told.state.ledger
    assert (ledger.series, ledger.escalation, ledger.spacing) == ({}, {}, 0)


def test_without_checkpoints_a_newer_step_than_ever_is_progress() -> None:
    told = running(checkpoints_path=None)
    told.report("refresh", step=7)
    again(told)
    told.report("refresh", step=7)
    assert told.state.ledger.no_progress == 1
    told.report("refresh", step=8)
    assert told.state.ledger.no_progress == 0


def test_until_a_checkpoint_was_recognised_steps_count() -> None:
    """One crash a day of a job whose checkpoints have names that nobody here knows."""
    told = running()
    for day in range(1, 8):
        told.report("refresh", step=1_000 * day, now=told.state.now + 86_400.0)
        assert again(told) is Level.IN_PLACE


def test_once_a_checkpoint_was_recognised_steps_do_not_count_any_more() -> None:
    told = running()
    told.report("refresh", step=7)
    told.saves(5)
    again(told)
    told.report("refresh", step=9)
    assert told.state.ledger.no_progress == 1
    told.saves(6)
    assert told.state.ledger.no_progress == 0


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
    told = running(policy)
    told.saves(first)
    again(told)
    told.saves(first)
    assert told.state.ledger.no_progress == 1
    told.saves(newer)
    assert told.state.ledger.no_progress == 0


def test_an_epoch_that_is_saved_again_is_not_progress_however_far_the_steps_are() -> None:
    told = running()
    told.saves(epoch(1))
    again(told)
    told.report("refresh", step=900, checkpoint=replace(epoch(1), at=99.0))
    assert told.state.ledger.no_progress == 1


def test_a_file_written_over_and_over_is_no_progress_where_the_steps_say_so() -> None:
    """A script that never resumes writes its `last.pt` at every start."""
    told = running()
    told.report("refresh", step=500, checkpoint=last(10.0))
    for start in range(3):
        assert again(told) is not Level.FAIL
        told.report("refresh", step=500, checkpoint=last(20.0 + start))
    assert again(told) is Level.FAIL


@pytest.mark.parametrize("resume", [epoch(3), last(10.0)], ids=["epoch", "time"])
def test_what_a_job_resumes_from_without_a_step_is_not_progress(resume: Checkpoint) -> None:
    told = running()
    told.see(sighting(_C.CRASH))
    told.succeeds(resume=resume)
    told.saves(resume)
    assert told.state.ledger.no_progress == 1


@pytest.mark.parametrize("saved", [epoch, lambda n: last(float(n))], ids=["epoch", "time"])
@pytest.mark.parametrize("policy", [Policy(), UNCONDITIONAL], ids=["native", "modelarts"])
def test_a_job_that_crashes_as_soon_as_it_has_saved_progresses(
    policy: Policy, saved: Callable[[int], Checkpoint]
) -> None:
    """Nobody sees its checkpoint before the next start finds it."""
    told = running(policy)
    for number in range(1, 8):
        assert told.see(sighting(_C.CRASH)).is_executed
        told.succeeds(resume=saved(number))
        assert {*views.status(told.state)["series"].values()} <= {0, 1}


def test_a_restart_that_finds_the_same_checkpoint_again_counts() -> None:
    told = running()
    levels = []
    for _ in range(4):
        levels.append(told.see(sighting(_C.CRASH)).level)
        if levels[-1] is not Level.FAIL:
            told.succeeds(resume=epoch(1))
    assert levels[-1] is Level.FAIL


def test_with_neither_steps_nor_a_checkpoint_recognised_life_counts() -> None:
    told = running()
    again(told)
    told.report("refresh", now=told.state.now + 2_000.0)
    assert told.state.ledger.no_progress == 0


def test_where_only_checkpoints_count_nothing_else_ever_does() -> None:
    told = running(cerebras(max_num_restarts=3))
    again(told)
    told.report("refresh", step=1_000, now=told.state.now + 90_000.0)
    assert told.state.ledger.no_progress == 1


def test_where_nothing_was_ever_seen_healthy_running_is_progress() -> None:
    told = running(checkpoints_path=None)
    again(told)
    told.report("refresh", now=told.state.now + 1_000.0)
    assert told.state.ledger.no_progress == 1
    told.report("refresh", now=told.state.now + 1_000.0)
    assert told.state.ledger.no_progress == 0


def test_silence_is_not_health() -> None:
    told = running(checkpoints_path=None)
    again(told)
    began = told.state.now
    told.report("refresh", now=began + 90_000.0, alive_until=began + 1_700.0)
    assert told.state.ledger.no_progress == 1
    told.report("refresh", now=began + 90_000.0, alive_until=began + 1_800.0)
    assert told.state.ledger.no_progress == 0


def test_unknown_is_not_zero() -> None:
    told = running()
    told.saves(10)
    unknown = replace(told.state, saved=None)
    assert progressed(unknown).ledger == told.state.ledger


def test_the_checkpoint_a_job_resumes_from_is_not_progress_of_its_own() -> None:
    told = running()
    told.see(sighting(_C.CRASH))
    resumed = replace(told.state, saved=Checkpoint(step=5, path="ckpt/5"))
    assert progressed(resumed).ledger.no_progress == 0
    told.state = replace(
        told.state,
        ledger=replace(told.state.ledger, mark=replace(told.state.ledger.mark, checkpoint=5)),
    )
    assert progressed(replace(resumed, ledger=told.state.ledger)).ledger.no_progress == 1


def test_restarts_without_progress_are_spaced() -> None:
    told = running(PATIENT)
    waits = []
    for _ in range(8):
        decision = told.see(sighting(_C.CRASH))
        waits.append(decision.remedy.space_s)
        assert (Step.SPACE in decision.remedy.steps) == (decision.remedy.space_s > 0)
        told.succeeds()
    assert waits == [*SPACING_S, 300.0, 300.0]


@pytest.mark.parametrize("cls", [_C.PLANNED, _C.PREEMPTED, _C.MAINTENANCE])
def test_what_nobody_lost_work_by_is_not_spaced(cls: FaultClass) -> None:
    told = running(PATIENT)
    for _ in range(4):
        assert told.see(sighting(cls, node=told.state.slots[1].node)).remedy.space_s == 0
        told.succeeds()


def test_spacing_counts_every_owner() -> None:
    told = running(PATIENT)
    for number in range(2):
        told.see(sighting(_C.DEVICE, code=f"code-{number}"))
        told.succeeds()
    assert told.see(sighting(_C.CRASH)).remedy.space_s == 5.0


# -- Rule 6 -------------------------------------------------------------------------------------


def test_the_fourth_unconditional_failure_in_a_row_fails_the_job() -> None:
    told = running(UNCONDITIONAL)
    assert [again(told) for _ in range(4)] == ["job", "job", "job", "fail"]
    assert told.used["job"] == 3
    assert "3 unconditional restarts in a row" in told.decisions[-1].reason


def test_a_clear_node_fault_is_answered_after_three_unconditional_restarts() -> None:
    told = running(UNCONDITIONAL)
    for _ in range(3):
        again(told)
    assert again(told, _C.NODE) is Level.JOB


def test_the_fourth_suspension_in_a_row_fails_the_job() -> None:
    told = running(UNCONDITIONAL)
    assert [again(told, _C.HANG) for _ in range(4)] == ["suspension"] * 3 + ["fail"]


def test_a_budget_that_ends_before_the_series_ends_the_job() -> None:
    told = running(modelarts(job_retry=2, unconditional=True))
    assert [again(told) for _ in range(3)] == ["job", "job", "fail"]
    assert told.record.result == "quotaExceeded"


OTHER_KINDS: Mapping[str, Callable[[Told], object]] = {
    "progress": lambda told: told.saves(10),
    "a recovery owned by infra": lambda told: again(told, _C.DEVICE),
    "a restart that counts in another series": lambda told: again(told, _C.HANG),
    "a planned restart": lambda told: again(told, _C.PLANNED),
    "an in-place restart for a code that users cause": lambda told: again(told, _C.DEVICE_USER),
}


@pytest.mark.parametrize("end", OTHER_KINDS.values(), ids=OTHER_KINDS.keys())
def test_a_series_ends_with(end: Callable[[Told], object]) -> None:
    told = running(UNCONDITIONAL)
    for _ in range(3):
        again(told)
    end(told)
    assert again(told) is Level.JOB
    assert told.state.ledger.series == {"unconditional": 1}


def test_suspensions_with_exits_in_between_are_never_three_in_a_row() -> None:
    told = running(UNCONDITIONAL)
    found = [again(told, cls) for _ in range(4) for cls in (_C.HANG, _C.CRASH)]
    assert found == [Level.SUSPENSION, Level.JOB] * 4
    assert told.state.ledger.series == {"unconditional": 1}


def test_what_is_only_noted_comes_between_nothing() -> None:
    told = running(UNCONDITIONAL)
    for _ in range(3):
        again(told)
        told.see(sighting(_C.SUBHEALTH))
    assert again(told) is Level.FAIL


def test_a_restart_that_is_tried_again_comes_between_nothing() -> None:
    told = running(UNCONDITIONAL)
    for count in (1, 2, 3):
        told.see(sighting(_C.CRASH))
        told.loses_outcome()
        told.finds(started=False, generation=told.state.generation)
        assert told.state.ledger.series == {"unconditional": count}
        told.succeeds()
    assert again(told) is Level.FAIL


def test_a_series_goes_on_when_the_restart_itself_falls_down_its_ladder() -> None:
    told = running(UNCONDITIONAL)
    for _ in range(2):
        again(told, _C.HANG)
    told.see(sighting(_C.HANG))
    told.fails("agent.unreachable", at=Step.STOP, slot=2)
    assert told.record.decision.level in (Level.POD, Level.JOB)
    told.succeeds()
    assert told.state.ledger.series["suspension"] == 3
    assert again(told, _C.HANG) is Level.FAIL


# -- The last level ------------------------------------------------------------------------------


def test_a_level_that_fails_with_none_left_has_failed_and_says_what_was_waited_for() -> None:
    told = running(UNCONDITIONAL)
    told.see(sighting(_C.NODE))
    waited = "no place for slot 1 within 1800 s"
    told.fails("place.none", at=Step.PLACE, message=waited)
    shown = responses.record(told.record)
    assert (shown["recover_result"], waited in shown["end_reason"]) == ("failed", True)
    assert waited in record_rows.story(shown)
    (run,) = modelarts_view.running_records(told.chronicle)
    assert run["end_reason"] == shown["end_reason"]
    assert run["recover_records"][-1]["recover_result"] == "failed"


def test_a_level_has_failed_too_where_a_budget_refuses_the_next() -> None:
    told = running(modelarts(job_retry=0, pod_retry=1))
    told.see(sighting(_C.NODE))
    told.fails("place.none", at=Step.PLACE, message="no place")
    assert [r.result for r in told.records] == ["failed", "quotaExceeded"]
    assert [r.end_reason is None for r in told.records] == [False, True]


def test_a_level_with_another_below_it_is_a_downgrade_and_ended_nothing() -> None:
    told = running()
    told.see(sighting(_C.NODE))
    told.fails("place.none", at=Step.PLACE, message="no place")
    first = told.records[0]
    assert (first.result, first.end_reason) == ("downgrade", None)


def test_a_job_that_fails_of_something_else_leaves_an_earlier_level_as_it_was() -> None:
    told = running(UNCONDITIONAL)
    for _ in range(3):
        again(told)
    assert again(told) is Level.FAIL
    assert [(r.result, r.end_reason) for r in told.records] == [("success", None)] * 3


def test_only_faults_of_users_and_unknown_ones_are_counted() -> None:
    told = running(UNCONDITIONAL)
    decision = told.see(sighting(_C.NODE))
    assert (decision.fault.owner, decision.counts) == (Owner.INFRA, ())


def test_a_failed_pod_level_that_falls_to_job_does_not_count() -> None:
    told = running(with_ladder(UNCONDITIONAL, _C.CRASH, Level.POD, Level.JOB))
    told.see(fact("process.exit", slot=1))
    assert told.fails("place.none", at=Step.PLACE).level is Level.JOB
    assert told.decisions[-1].counts == ()
