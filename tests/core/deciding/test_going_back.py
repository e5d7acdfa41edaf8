"""A job goes back behind a whole checkpoint after bad numbers, and once where two runs of it ended alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle import views
from everstep.core.deciding.decision import Decision, RollbackCount
from everstep.core.facts import NONE_OLDER
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.recovering.plans import launch_plan
from everstep.core.spec import Match, Policy, Rule
from everstep.core.state import Wait
from everstep.core.world import Checkpoint
from everstep.dialects import responses
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.mindcluster.view import reschedule_reason
from everstep.dialects.modelarts import view as modelarts_view
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, fact, levels, running, sighting, with_ladder

_C, _L = FaultClass, Level
PATIENT = Policy(no_progress_restarts=None)


def at(step: int) -> Checkpoint:
    return Checkpoint(step=step, path=f"ckpt/{step}")


def saved(job: ScriptedJob, *steps: int) -> ScriptedJob:
    for step in steps:
        job.saves(step)
    return job


def crashes(
    job: ScriptedJob, exception: str = "ValueError: bad shard 7", *, step: int = 34
) -> Decision:
    job.report(step=step)
    end: dict[str, Any] = {"exit_code": 1, "exception": exception, "at_step": step}
    generation = job.state.generation
    return job.see(fact("process.exit", slot=1, rank=1, generation=generation, **end))


def turns_nan(job: ScriptedJob) -> Decision:
    return job.see(sighting(_C.NUMERIC))


# -- Bad numbers --------------------------------------------------------------------------------


def test_going_back_again_goes_further_back() -> None:
    job = saved(running(PATIENT), 10, 20, 30)
    assert turns_nan(job).remedy.older_than_step == 30
    job.succeeds(resume=at(20))
    job.saves(30)
    assert turns_nan(job).remedy.older_than_step == 20


def test_who_goes_back_as_often_as_it_may_ends_with_a_sentence_that_names_the_limit() -> None:
    job = saved(running(replace(PATIENT, rollbacks=2)), 10, 20, 30)
    for times, step in enumerate((20, 10)):
        assert views.status(job.state)["series"]["rollbacks"] == times
        assert turns_nan(job).level is _L.ROLLBACK
        job.succeeds(resume=at(step))
    assert views.status(job.state)["series"]["rollbacks"] == 2
    assert turns_nan(job).level is _L.FAIL
    reason = "without progress it may go back 2 times in a row (recovery.rollbacks)"
    assert reason in job.state.ending_reason


def test_0_never_goes_back_and_none_always_may() -> None:
    never = saved(running(replace(PATIENT, rollbacks=0)), 10, 20)
    assert turns_nan(never).level is _L.FAIL
    always = saved(running(replace(PATIENT, rollbacks=None)), 10, 20, 30, 40, 50, 60)
    for step in (50, 40, 30, 20, 10):
        assert turns_nan(always).remedy.older_than_step == step + 10
        always.succeeds(resume=at(step))


def test_a_ladder_of_the_author_goes_on_where_it_may_not_go_back_any_more() -> None:
    policy = with_ladder(
        replace(PATIENT, rollbacks=0), _C.NUMERIC, _L.ROLLBACK, _L.JOB, is_literal=True
    )
    decision = turns_nan(saved(running(policy), 10, 20))
    assert decision.level is _L.JOB
    assert any("recovery.rollbacks" in sentence for sentence in decision.passed_over)


def test_a_checkpoint_beyond_all_others_begins_the_count_anew_and_one_saved_again_does_not() -> (
    None
):
    job = saved(running(replace(PATIENT, rollbacks=1)), 10, 20, 30)
    turns_nan(job)
    job.succeeds(resume=at(20))
    job.saves(30)
    assert job.state.ledger.rollbacks.times == 1
    job.saves(40)
    assert turns_nan(job).remedy.older_than_step == 40


def test_another_recovery_in_between_begins_nothing_anew() -> None:
    job = saved(running(replace(PATIENT, rollbacks=1)), 10, 20, 30)
    turns_nan(job)
    job.succeeds(resume=at(20))
    job.see(sighting(_C.NODE))
    job.succeeds(resume=at(20))
    assert turns_nan(job).level is _L.FAIL


def test_going_back_is_no_progress() -> None:
    job = saved(running(Policy(rollbacks=None)), *range(10, 80, 10))
    for step in (60, 50, 40):
        turns_nan(job)
        job.succeeds(resume=at(step))
        job.saves(step + 10)
    assert turns_nan(job).level is _L.FAIL
    assert "no progress after 3 restarts" in job.state.ending_reason


def test_a_rollback_that_is_done_once_more_counts_once() -> None:
    job = saved(running(replace(PATIENT, rollbacks=1)), 10, 20, 30)
    turns_nan(job)
    job.loses_outcome()
    job.finds(started=False, generation=job.state.generation)
    assert (levels(job)[-1], job.plan.remedy.older_than_step) == (_L.ROLLBACK, 30)
    job.succeeds(resume=at(20))
    assert job.state.ledger.rollbacks == RollbackCount(times=1, resumed_at=20)


def test_one_that_ended_before_it_chose_is_none_of_those_that_a_job_may_make() -> None:
    job = saved(running(PATIENT), 10, 20, 30)
    turns_nan(job)
    job.fails("agent.unreachable", at=Step.STOP, slot=1)
    assert job.state.ledger.rollbacks == RollbackCount()


def test_bad_checkpoints_are_left_behind_however_many_there_are() -> None:
    job = saved(running(replace(PATIENT, rollbacks=1)), 10, 20, 30, 40)
    for step in (40, 30, 20):
        decision = job.see(fact("checkpoint.bad", step=step))
        assert (decision.level, decision.remedy.older_than_step) == (_L.ROLLBACK, step)
        job.succeeds(resume=at(step - 10))
    assert job.state.ledger.rollbacks.times == 0


# -- The same end twice -------------------------------------------------------------------------


def ended_alike_twice(policy: Policy, *steps: int) -> tuple[ScriptedJob, Decision]:
    job = saved(running(policy), *steps)
    crashes(job)
    job.succeeds(resume=at(steps[-1]))
    return job, crashes(job)


@pytest.mark.parametrize("policy", [Policy(), cerebras(max_num_restarts=3, goes_back=True)])
def test_two_runs_that_end_alike_make_the_checkpoint_suspect(policy: Policy) -> None:
    job, decision = ended_alike_twice(policy, 10, 20, 30)
    assert (decision.level, decision.remedy.older_than_step) == (_L.ROLLBACK, 30)
    reason = (
        "ValueError at step 34 twice in a row: checkpoint step 30 is suspected; it is set aside"
    )
    assert reason in decision.reason
    job.succeeds(resume=at(20))
    assert job.state.ledger.no_progress == 2


def test_it_is_left_behind_once_and_the_number_of_restarts_holds() -> None:
    job, _ = ended_alike_twice(Policy(no_progress_restarts=5), 10, 20, 30)
    job.succeeds(resume=at(20))
    job.saves(30)
    while crashes(job).is_executed:
        job.succeeds(resume=at(30))
    assert levels(job) == [_L.IN_PLACE, _L.ROLLBACK, *[_L.JOB] * 3, _L.FAIL]
    assert "no progress after 5 restarts" in job.state.ending_reason
    assert "ValueError at step 34, 6 times in a row" in job.state.ending_reason


@pytest.mark.parametrize(
    ("policy", "stays_with"),
    [(Policy(), _L.IN_PLACE), (cerebras(max_num_restarts=3, goes_back=True), _L.JOB)],
)
def test_where_none_is_older_it_stays_and_the_restart_is_as_before(
    policy: Policy, stays_with: Level
) -> None:
    job, _ = ended_alike_twice(policy, 30)
    decision = job.fails(
        NONE_OLDER, at=Step.RESUME, message="no good checkpoint is older than 30 (there are: 30)"
    )
    assert (decision.level, decision.remedy.older_than_step) == (stays_with, None)
    assert "rollback failed: no good checkpoint is older than 30" in decision.reason
    assert job.state.ledger.rollbacks.times == 0
    job.succeeds(resume=at(30))
    assert crashes(job).level is not _L.ROLLBACK


def test_what_followed_a_rollback_stays_too_where_none_is_older() -> None:
    job, _ = ended_alike_twice(Policy(), 30)
    job.gives_way(sighting(_C.NODE))
    decision = job.fails(NONE_OLDER, at=Step.RESUME)
    assert (decision.level, decision.remedy.older_than_step) == (_L.POD, None)


REPEATED_ROLLBACKS = (
    ("theirs", modelarts(job_retry=8, unconditional=True), (10, 20, 30)),
    ("theirs too", mindcluster(fault_scheduling="force", fault_retry_times=9), (10, 20, 30)),
    ("used up", Policy(rollbacks=0), (10, 20, 30)),
    ("nothing was saved", Policy(), ()),
    ("written by the author", with_ladder(Policy(), _C.CRASH, _L.JOB, is_literal=True), (10, 20)),
    (
        "a rule of the author",
        Policy(rules=(Rule(match=Match(exit_code=(1,)), action="levels", levels=(_L.JOB,)),)),
        (10, 20),
    ),
)


@pytest.mark.parametrize(
    ("policy", "steps"),
    [row[1:] for row in REPEATED_ROLLBACKS],
    ids=[row[0] for row in REPEATED_ROLLBACKS],
)
def test_otherwise_it_is_resumed_from_again(policy: Policy, steps: tuple[int, ...]) -> None:
    job = saved(running(policy), *steps)
    crashes(job)
    job.succeeds(resume=at(steps[-1]) if steps else None)
    decision = crashes(job)
    assert decision.is_executed
    assert (decision.level is _L.ROLLBACK, decision.remedy.older_than_step) == (False, None)


def test_a_limit_that_keeps_it_is_told() -> None:
    _, decision = ended_alike_twice(Policy(rollbacks=0), 10, 20, 30)
    assert "is suspected; it stays, as without progress it may go back 0 times" in decision.reason


def test_of_files_that_only_time_tells_apart_none_is_older() -> None:
    job = running()
    last = Checkpoint(step=None, path="ckpt/last.pt", at=5.0)
    job.saves(last)
    crashes(job)
    job.succeeds(resume=last)
    decision = crashes(job)
    assert decision.level is not _L.ROLLBACK
    assert (
        "last.pt is suspected; it stays, as only file times order the checkpoints"
        in decision.reason
    )


def test_one_that_could_not_be_set_aside_is_resumed_from_by_nobody_until_a_newer_one_is_there() -> (
    None
):
    job, _ = ended_alike_twice(PATIENT, 10, 20, 30)
    job.succeeds(resume=at(20), newer_remain=True)
    job.saves(30)  # it is the newest that is seen, for it is still there
    for exception, holds in (("KeyError", True), ("OSError", False)):
        assert crashes(job, exception).remedy.older_than_step == 30
        job.succeeds(resume=at(20), newer_remain=holds)
    assert crashes(job, "TypeError").remedy.older_than_step is None, "it is out of the way by now"


def test_a_newer_one_ends_that() -> None:
    job, _ = ended_alike_twice(Policy(), 10, 20, 30)
    job.succeeds(resume=at(20), newer_remain=True)
    job.saves(40)
    assert job.see(sighting(_C.NODE)).remedy.older_than_step is None


def test_nor_does_a_job_that_was_paused_meanwhile() -> None:
    job, _ = ended_alike_twice(Policy(), 10, 20, 30)
    job.succeeds(resume=at(20), newer_remain=True)
    assert launch_plan(job.state).remedy.older_than_step == 30


def test_a_job_whose_suspected_checkpoint_stays_ends_as_any_other() -> None:
    job, _ = ended_alike_twice(Policy(), 10, 20, 30)
    job.succeeds(resume=at(20), newer_remain=True)
    while crashes(job).is_executed:
        assert job.plan.remedy.older_than_step == 30
        job.succeeds(resume=at(20), newer_remain=True)
    assert levels(job) == [_L.IN_PLACE, _L.ROLLBACK, _L.JOB, _L.FAIL]
    assert "no progress after 3 restarts" in job.state.ending_reason


def test_where_nothing_older_is_left_it_is_tried_again_and_not_for_ever() -> None:
    job, _ = ended_alike_twice(Policy(), 10, 20, 30)
    job.succeeds(resume=at(20), newer_remain=True)
    assert job.see(sighting(_C.NODE)).remedy.older_than_step == 30
    assert job.fails(NONE_OLDER, at=Step.RESUME).remedy.older_than_step is None


@pytest.mark.parametrize(
    "first", [{"exception": "KeyError: a"}, {"step": 33}], ids=["another exception", "another step"]
)
def test_ends_that_are_not_alike_make_nothing_suspect(first: dict[str, Any]) -> None:
    job = saved(running(), 10, 20, 30)
    crashes(job, **first)
    job.succeeds(resume=at(30))
    assert crashes(job).level is not _L.ROLLBACK


# -- The same exit code before a step, without an exception --------------------------------------


def exits(job: ScriptedJob, *, log: str = "", **end: Any) -> Decision:
    """A rank ends before a step, without a traceback."""
    details: dict[str, Any] = {"exit_code": 1, "log": log, **end}
    return job.see(fact("process.exit", slot=1, rank=1, generation=job.state.generation, **details))


def ended_early(
    policy: Policy = PATIENT, *, steps: tuple[int, ...] = (10, 20, 30), **end: Any
) -> ScriptedJob:
    """A job that trained and was restarted, and then ends before a step until it has failed."""
    job = saved(running(policy), *steps)
    crashes(job)
    job.succeeds(resume=at(steps[-1]))
    for _ in range(5):
        if not exits(job, **end).is_executed:
            break
        job.succeeds(resume=at(20 if levels(job)[-1] is _L.ROLLBACK else steps[-1]))
    return job


@pytest.mark.parametrize("log", ["", "cannot load the checkpoint file", "weights corrupt"])
def test_the_last_restart_is_spent_on_an_older_checkpoint(log: str) -> None:
    job = ended_early(Policy(), log=log)
    assert levels(job) == [_L.IN_PLACE, _L.POD, _L.ROLLBACK, _L.FAIL]
    back = job.decisions[-2]
    assert back.remedy.older_than_step == 30
    reason = "exit code 1 before a step twice in a row: checkpoint step 30 is suspected; it is set"
    assert reason in back.reason
    assert "no progress after 3 restarts" in job.state.ending_reason


def test_an_older_checkpoint_that_is_whole_lets_the_job_go_on() -> None:
    job = saved(running(Policy()), 10, 20, 30)
    crashes(job)
    for _ in range(2):
        job.succeeds(resume=at(30))
        exits(job)
    job.succeeds(resume=at(20))
    job.report(step=31)
    job.saves(40)
    assert (job.state.ledger.no_progress, job.decisions[-1].level) == (0, _L.ROLLBACK)


NOT_OF_THE_CHECKPOINT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a signal", {"exit_code": None, "signal": 11}),
    ("a file that is not there", {"log": "/data/train.bin: No such file or directory"}),
    ("storage", {"log": "write error: No space left on device"}),
    ("the network", {"log": "Connection refused"}),
    ("a command that is not found", {"exit_code": 127}),
)


@pytest.mark.parametrize(
    "end",
    [row[1] for row in NOT_OF_THE_CHECKPOINT],
    ids=[row[0] for row in NOT_OF_THE_CHECKPOINT],
)
def test_an_end_with_another_cause_leaves_the_checkpoint(end: dict[str, Any]) -> None:
    assert levels(ended_early(Policy(), **end)) == [_L.IN_PLACE, _L.POD, _L.JOB, _L.FAIL]


def test_a_job_that_never_trained_leaves_the_checkpoint_of_an_earlier_one() -> None:
    """A mistake of its document or a missing mount is the likelier cause."""
    job = running(Policy())
    job.saves(30)
    for _ in range(4):
        exits(job)
        if job.decisions[-1].is_executed:
            job.succeeds(resume=at(30))
    assert _L.ROLLBACK not in levels(job)


def test_without_a_limit_there_is_no_last_restart() -> None:
    assert _L.ROLLBACK not in levels(ended_early(PATIENT))


# -- Broken hardware in the same incident -------------------------------------------------------

BY_RULE = replace(
    PATIENT,
    rules=(Rule(match=Match(cls=_C.NUMERIC), action="levels", levels=(_L.ROLLBACK,)),),
)


def test_a_rollback_leaves_the_node_that_is_known_as_broken() -> None:
    job = saved(running(BY_RULE), 10, 20)
    decision = job.see(sighting(_C.NUMERIC, slot=0), sighting(_C.DEVICE_FATAL))
    assert decision.level is _L.ROLLBACK
    assert [isolation.node for isolation in decision.remedy.isolate] == ["n1"]
    assert decision.remedy.recreate == (1,)
    assert decision.remedy.steps == (
        *(Step.STOP, Step.ISOLATE, Step.PLACE, Step.RESUME, Step.START),
    )
    assert job.plan.places is not None
    assert job.plan.places.wait_s == job.state.phase.limits.requeue_s


def test_a_rollback_that_leaves_a_node_counts_as_a_restart_that_places_pods() -> None:
    job = saved(running(BY_RULE), 10, 20)
    job.see(sighting(_C.NUMERIC, slot=0), sighting(_C.DEVICE_FATAL))
    first_plan = job.plan
    waiting = replace(job.state, waiting=Wait(what="1 more node"))
    assert modelarts_view.details(waiting, job.chronicle)["status"]["secondary_phase"] == "Queuing"
    job.succeeds(stages_s={"stop": 1.0, "place": 2.0})
    assert not job.chronicle.starts[-1].is_same_place
    assert (
        modelarts_view.of_record(job.chronicle.records[-1])["start_type"] == "init_or_rescheduled"
    )
    (entry,) = reschedule_reason("demo", map(responses.record, job.chronicle.records)).values()
    assert entry["TotalRescheduleTimes"] == 1
    turns_nan(job)
    assert (first_plan.reissued, job.plan.reissued) == (True, False)
    assert (job.state.ledger.restarts, job.state.ledger.reschedules) == (2, 1)
    job.succeeds(stages_s={"stop": 1.0})
    assert job.chronicle.starts[-1].is_same_place


@pytest.mark.parametrize("cls", [_C.DEVICE_FATAL, _C.DEVICE, _C.DEVICE_USER])
def test_numbers_for_which_a_rule_goes_back_do_not_send_the_job_back_twice(cls: FaultClass) -> None:
    job = saved(running(BY_RULE), 10, 20, 30)
    decision = job.see(sighting(_C.NUMERIC, slot=0), sighting(cls))
    assert (decision.level, decision.facts_for_later) == (_L.ROLLBACK, ())
    job.succeeds(resume=at(20))
    assert job.state.ledger.restarts == 1


def test_a_rollback_leaves_all_nodes_that_are_known_as_broken() -> None:
    job = saved(running(BY_RULE), 10, 20)
    facts = (sighting(_C.NUMERIC, slot=0), sighting(_C.NODE), sighting(_C.DEVICE_FATAL, node="n2"))
    decision = job.see(*facts)
    assert {isolation.node for isolation in decision.remedy.isolate} == {"n1", "n2"}
    assert decision.remedy.recreate == (1, 2)


def test_a_device_heals_while_its_job_goes_back() -> None:
    job = saved(running(BY_RULE), 10, 20)
    decision = job.see(sighting(_C.NUMERIC, slot=0), sighting(_C.DEVICE))
    assert [(ref.node, ref.device) for ref in decision.remedy.heal] == [("n1", 3)]
    assert Step.HEAL in decision.remedy.steps
    assert (decision.remedy.isolate, decision.remedy.recreate) == ((), ())


def test_a_rollback_whose_device_does_not_heal_leaves_the_device() -> None:
    job = saved(running(BY_RULE), 10, 20)
    job.see(sighting(_C.NUMERIC, slot=0), sighting(_C.DEVICE))
    decision = job.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    assert decision.level is _L.ROLLBACK
    assert [isolation.node for isolation in decision.remedy.isolate] == ["n1"]
    assert (decision.remedy.heal, decision.remedy.recreate) == ((), (1,))
    assert decision.remedy.older_than_step == 20


def test_a_level_that_failed_before_it_isolated_leaves_that_to_the_rollback_after_it() -> None:
    job = saved(running(with_ladder(PATIENT, _C.NODE, _L.POD, _L.ROLLBACK)), 10, 20)
    job.see(sighting(_C.NODE))
    decision = job.fails("process.not_kept", at=Step.STOP)
    assert decision.level is _L.ROLLBACK
    assert [isolation.node for isolation in decision.remedy.isolate] == ["n1"]
    assert decision.remedy.recreate == (1,)
