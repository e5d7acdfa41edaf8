"""The loop: every pair that can happen has a row, commands wait their turn, phases have their own books."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from everstep.chronicle import views
from everstep.chronicle.fold import folded
from everstep.core.deciding import decide
from everstep.core.deciding.decision_input import decision_input
from everstep.core.errors import CommandRejected, LifecycleBug
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.loop import commands, lifecycle, next_actions, operators, outcomes
from everstep.core.loop.next_actions import (
    Action,
    Begun,
    Clear,
    Cleared,
    Decided,
    End,
    Event,
    NextPhase,
    Observe,
    PlanEnded,
    RunPlan,
    Undecided,
    WatchAction,
    Watched,
)
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.spec import Budget, Match, Policy, Rule
from everstep.core.state import FACT_IDS_KEPT, Mode, Wait
from everstep.core.world import Checkpoint
from everstep.dialects import responses
from everstep.dialects.cerebras.policy import cerebras
from tests.support.builders import (
    COLUMNS,
    ScriptedJob,
    fact,
    job_spec,
    outcome,
    running,
    sighting,
    with_ladder,
)

_C = FaultClass

EVENTS: dict[type, Event] = {
    Begun: Begun(),
    PlanEnded: PlanEnded(outcome=None),
    Watched: Watched(report=WatchReport(news="refresh", now=0.0, cursor="")),
    Decided: Decided(decision=running().see(sighting(_C.SUBHEALTH))),
    Undecided: Undecided(),
    Cleared: Cleared(),
}

ROWS = {
    *((mode, Begun) for mode in Mode),
    *(
        (mode, PlanEnded)
        for mode in (Mode.LAUNCHING, Mode.RECOVERING, Mode.PAUSING, Mode.REPORTING)
    ),
    *((mode, Watched) for mode in (Mode.WATCHING, Mode.PAUSED, Mode.READING)),
    (Mode.DECIDING, Decided),
    (Mode.DECIDING, Undecided),
    (Mode.CLOSING, Cleared),
}


@pytest.mark.parametrize(("mode", "event"), [*itertools.product(Mode, EVENTS)])
def test_a_pair_has_a_row_or_is_a_bug_that_names_both(mode: Mode, event: type) -> None:
    state = replace(running().state, mode=mode)
    if (mode, event) in ROWS:
        lifecycle.advance(state, EVENTS[event])
        return
    with pytest.raises(LifecycleBug, match=rf"{event.__name__} in mode {mode}"):
        lifecycle.advance(state, EVENTS[event])


@pytest.mark.parametrize(
    ("cls", "has_snapshots", "saves"),
    [(_C.CRASH, True, True), (_C.CRASH, False, False), (_C.NUMERIC, True, False)],
)
def test_a_job_that_fails_has_time_to_save_what_memory_alone_holds(
    cls: FaultClass, has_snapshots: bool, saves: bool
) -> None:
    policy = with_ladder(Policy(), cls, Level.FAIL)
    job = running(policy, limits={"grace_s": 7.0})
    job.see(sighting(cls), remembered=7 if has_snapshots else None)
    assert job.action == Clear(job=job.state.job, grace_s=7.0 if saves else 0.0)


CARRYING_OUT = (Mode.LAUNCHING, Mode.RECOVERING, Mode.PAUSING, Mode.REPORTING)


@pytest.mark.parametrize("mode", CARRYING_OUT)
def test_a_job_that_the_cluster_refuses_clears_up_and_ends(mode: Mode) -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    state = replace(job.state, mode=mode)
    refused = PlanEnded(outcome=None, refused="model_dir: taken")
    job.state = state
    job._advance(refused)
    assert isinstance(job.action, next_actions.Clear)
    job._advance(Cleared())
    ended: object = job.action
    assert ended == next_actions.End(status="Invalid", reason="model_dir: taken")
    assert views.status(job.state)["state"] == "failed"
    assert responses.report(job.state, job.chronicle)["status"] == "Failed"
    assert all(r.result == "terminated" for r in job.records)


def test_a_job_refused_in_a_restart_hands_over_the_isolation_that_was_decided() -> None:
    job = running()
    job.see(sighting(_C.NODE, node="n2"))
    job._advance(PlanEnded(outcome=None, refused="model_dir: taken"))
    assert [isolation.node for isolation in job.state.deferred] == ["n2"]


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_has_a_next_action_and_a_name_to_show(mode: Mode) -> None:
    state = replace(running().state, mode=mode, ending="Failed" if mode is Mode.ENDED else None)
    assert isinstance(next_actions.next_action(state), Action)
    assert views.status(state)["state"]


# -- Every question has an answer ---------------------------------------------------------------


def _fresh(job: ScriptedJob) -> None:
    """No incident."""


def _recovering(job: ScriptedJob) -> None:
    job.see(sighting(_C.CRASH))
    job.state = replace(job.state, plan=None)


def _node_lost(job: ScriptedJob) -> None:
    job.see(sighting(_C.NODE))


def _last_rung(job: ScriptedJob) -> None:
    job.see(sighting(_C.NODE))
    if job.decisions[-1].is_executed:
        job.fails("place.none", at=Step.PLACE)


@pytest.mark.parametrize("incident", [_fresh, _recovering, _node_lost, _last_rung])
@pytest.mark.parametrize("column", COLUMNS)
def test_every_class_has_an_answer_in_every_dialect_and_incident(
    column: str, incident: type
) -> None:
    for cls in (*FaultClass, None):
        job = running(COLUMNS[column])
        incident(job)
        reported = fact("martians.landed") if cls is None else sighting(cls)
        for lost_slots in ((), (1,)):
            inputs = decision_input(job.state, now=job.state.now, facts=(reported,))
            decision = decide.decide(replace(inputs, lost_containers=lost_slots))
            assert decision.reason
            assert decision.seen or decision.repeats or decision.fault.kind == "nothing.new"


@pytest.mark.parametrize("level", ["banana", "note", "fail", "", None, 3])
def test_a_planned_restart_of_no_level_we_know_is_a_job_restart(level: str | int | None) -> None:
    assert running().see(fact("operator.restart", level=level)).level is Level.JOB


# -- Within an incident -------------------------------------------------------------------------


def test_a_lighter_matter_does_not_change_what_is_done() -> None:
    job = running()
    first = job.see(sighting(_C.NODE))
    second = job.gives_way(fact("martians.landed"), at=Step.PLACE)
    assert (second.level, second.fault.cls, second.bills) == (first.level, _C.NODE, {})


def test_the_same_class_elsewhere_is_answered_together() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    second = job.gives_way(sighting(_C.NODE, node="n2"), at=Step.PLACE)
    assert (second.level, second.remedy.recreate) == (Level.POD, (1, 2))


def test_the_same_class_never_gets_gentler() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE)
    assert job.gives_way(sighting(_C.NODE, node="n2")).level is Level.JOB


def test_a_new_pod_that_never_came_is_made_by_the_next_level() -> None:
    job = running()
    job.see(sighting(_C.CRASH), lost_containers=(1,))
    assert job.plan.remedy.recreate == (1,)
    second = job.gives_way(sighting(_C.NODE, node="n2"), at=Step.PLACE)
    assert second.remedy.recreate == (1, 2)


def test_slots_without_a_pod_are_shown_as_lost_while_the_job_recovers() -> None:
    """As after the record of the job was deleted, with which its pods go."""
    job = running()
    removal = fact("pod.gone", at=job.state.now, slot=0, message="the pod of slot 0 was removed")
    job.see(removal, lost_containers=(0, 1))
    assert [str(slot.state) for _, slot in sorted(job.state.slots.items())][:3] == [
        "lost",
        "lost",
        "running",
    ]


def test_a_launch_that_gives_way_to_a_lost_node_makes_the_missing_pods() -> None:
    job = ScriptedJob(spec=job_spec())
    decision = job.gives_way(sighting(_C.NODE), at=Step.START)
    assert (decision.level, decision.remedy.recreate) == (Level.POD, (1,))
    job = ScriptedJob(spec=job_spec())
    decision = job.gives_way(fact("martians.landed"), at=Step.PLACE)
    assert decision.remedy.recreate == (0, 1, 2, 3)


def test_a_launch_that_gave_way_to_nothing_is_repeated() -> None:
    job = ScriptedJob(spec=job_spec())
    job.gives_way(fact("node.down", node="n77"), at=Step.PLACE)
    assert isinstance(job.action, RunPlan)
    assert (job.state.mode, job.plan.n) == (Mode.LAUNCHING, 0)


def test_a_launch_that_failed_is_not_answered_with_a_note() -> None:
    job = ScriptedJob(spec=job_spec(with_ladder(Policy(), _C.CRASH, Level.NOTE)))
    assert job.fails("start.timeout", at=Step.START, slot=1).level is Level.FAIL


# -- Operators ----------------------------------------------------------------------------------


def test_a_pause_keeps_the_pods_and_a_resume_runs_the_command_again() -> None:
    job = running()
    job.command("pause", reason="lunch")
    job.interrupted()
    assert (job.plan.title, job.plan.remedy.steps) == ("pause", (Step.STOP,))
    job.succeeds()
    assert (job.state.mode, job.state.running_since) == (Mode.PAUSED, None)
    job.command("resume")
    job.interrupted()
    assert (job.decisions[-1].level, job.decisions[-1].bills) == (Level.IN_PLACE, {})


def test_a_pause_whose_processes_may_still_run_shows_that() -> None:
    job = running()
    job.command("pause")
    job.interrupted()
    why = "slot 1 did not confirm its end within 5 s"
    cause = fact("agent.unreachable", slot=1, message=why)
    job._advance(PlanEnded(outcome=outcome(job.plan, "failed", Step.STOP, cause)))
    expected = ("paused", f"the end of all processes: {why}")

    def status() -> tuple[str, str]:
        status = views.status(job.state)
        return status["state"], status["waiting_for"]

    assert status() == expected
    job.report("refresh")
    assert status() == expected, "the watch of a paused job shows nothing of processes out of reach"
    job._advance(Begun())
    assert status() == expected, "the job goes on as a new run"
    job.state = lifecycle.waits(job.state, Wait(what="a worker"))
    assert status() == ("paused", "a worker")
    job.state = lifecycle.waits(job.state, None)
    assert status() == expected
    job.command("resume")
    job.interrupted()
    assert views.status(job.state)["waiting_for"] is None


def test_a_slot_that_a_pause_could_not_stop_is_stopped_or_replaced_by_the_resume() -> None:
    job = running()
    job.command("pause")
    job.interrupted()
    unreachable = fact("agent.unreachable", slot=1)
    job._end("failed", Step.STOP, {"lost_containers": (1,)}, unreachable)
    assert job.state.mode is Mode.PAUSED
    job.command("resume")
    job.interrupted()
    assert (job.plan.level, job.plan.remedy.steps[0]) == (Level.IN_PLACE, Step.STOP)
    again = job.fails("agent.unreachable", at=Step.STOP, slot=1, lost_containers=(1,))
    assert (again.level, again.remedy.recreate) == (Level.POD, (1,))


@pytest.mark.parametrize("level", [Level.IN_PLACE, Level.JOB])
@pytest.mark.parametrize("reads", [False, True])
def test_a_restart_that_waits_behind_a_pause_is_the_one_with_which_the_job_resumes(
    *, reads: bool, level: Level
) -> None:
    """Both wait together after a reset, which sends again what was sent before."""
    job = running()
    if reads:
        job.report("moved")
    job.command("restart", level=str(level))
    job.command("pause")
    job.interrupted()
    job.succeeds()
    assert job.state.mode is Mode.PAUSED
    job.command("resume")
    job.interrupted()
    assert job.plan.level is level
    job.succeeds()
    assert (job.state.mode, job.state.commands) == (Mode.WATCHING, ())
    assert len(job.decisions) == 1


def test_a_launch_after_a_pause_is_the_restart_that_waited_behind_it() -> None:
    job = ScriptedJob(spec=job_spec())
    job.command("restart")
    job.command("pause")
    job.interrupted()
    job.succeeds()
    job.command("resume")
    job.interrupted()
    job.succeeds()
    assert (job.state.mode, job.state.commands, job.records) == (Mode.WATCHING, (), ())


def test_the_launch_of_a_phase_is_the_restart_that_was_requested_before_it() -> None:
    job = ScriptedJob(spec=job_spec())
    job.state = lifecycle.opened(job.state.job, job.state.spec)
    job.command("restart")
    job._advance(Begun())
    job.succeeds()
    assert (job.state.mode, job.state.commands, job.records) == (Mode.WATCHING, (), ())


def test_after_a_pause_in_an_incident_the_same_level_runs_again_free_of_charge() -> None:
    job = running()
    first = job.see(sighting(_C.NODE))
    job.command("pause")
    job.interrupted()
    job.succeeds()
    job.command("resume")
    job.interrupted()
    second = job.decisions[-1]
    assert (second.level, second.remedy.recreate, second.bills) == (
        first.level,
        first.remedy.recreate,
        {},
    )
    assert [r.result for r in job.records] == ["terminated", "recovering"]


@pytest.mark.parametrize(
    ("cls", "requested", "level", "recreate"),
    [
        (_C.CRASH, Level.IN_PLACE, Level.IN_PLACE, ()),
        (_C.CRASH, Level.POD, Level.POD, (0, 1, 2, 3)),
        (_C.CRASH, Level.JOB, Level.JOB, (0, 1, 2, 3)),
        (_C.DEVICE, Level.JOB, Level.JOB, (0, 1, 2, 3)),
        (_C.NODE, Level.IN_PLACE, Level.POD, (1,)),
        (_C.NODE, Level.POD, Level.POD, (0, 1, 2, 3)),
        (_C.NUMERIC, Level.POD, Level.JOB, (0, 1, 2, 3)),
    ],
)
def test_one_restart_serves_the_incident_of_a_pause_and_the_restart_requested_behind_it(
    cls: FaultClass, requested: Level, level: Level, recreate: tuple[int, ...]
) -> None:
    job = running(Policy(budgets=(Budget(name="any", limit=9),)))
    job.saves(40)
    first = job.see(sighting(cls, message="what was reported"))
    job.command("restart", level=str(requested), reason="new settings")
    job.command("pause")
    job.interrupted()
    job.succeeds()
    spent = job.used
    job.command("resume")
    job.interrupted()
    one = job.decisions[-1]
    assert (one.level, one.remedy.recreate, one.fault.cls) == (level, recreate, cls)
    assert one.remedy.older_than_step == first.remedy.older_than_step
    assert one.reason.endswith("; the restart that was requested as well: new settings")
    assert {i.node for i in one.remedy.isolate} == {i.node for i in first.remedy.isolate}
    assert one.remedy.heal == first.remedy.heal
    job.succeeds()
    assert (job.state.mode, job.state.commands) == (Mode.WATCHING, ())
    assert (len(job.decisions), job.used) == (2, spent)
    assert [record.result for record in job.records] == ["terminated", "success"]
    assert job.state.ledger.reschedules == any(d.remedy.places_pods for d in job.decisions)


def test_a_restart_requested_behind_the_pause_of_a_failed_level_is_the_next_level() -> None:
    job = running()
    job.see(sighting(_C.CRASH, message="what was reported"))
    job.command("restart", level="job", reason="new settings")
    job.command("pause")
    job._end("failed", Step.START, {}, fact("start.timeout", slot=1))
    job.succeeds()
    job.command("resume")
    job.interrupted()
    one = job.decisions[-1]
    assert (one.level, one.ladder, one.fault.cls) == (Level.JOB, (), _C.CRASH)
    assert "in_place failed" in one.reason
    assert "requested as well: new settings" in one.reason
    job.succeeds()
    assert (job.state.mode, len(job.decisions)) == (Mode.WATCHING, 2)


def test_a_restart_requested_behind_the_pause_of_an_incident_that_needs_none_is_made() -> None:
    """No backup pod was ready, and the training that was to go on was paused."""
    job = running(with_ladder(Policy(stands_by=(_C.SUBHEALTH,)), _C.SUBHEALTH, Level.POD))
    job.see(sighting(_C.SUBHEALTH))
    job.command("restart", level="in_place", reason="new settings")
    job.command("pause")
    job._end("failed", Step.STANDBY, {}, fact("standby.none"))
    job.succeeds()
    job.command("resume")
    job.interrupted()
    assert job.decisions[-1].level is Level.IN_PLACE
    assert job.decisions[-1].reason == "planned: new settings"
    job.succeeds()
    assert (job.state.mode, job.state.commands) == (Mode.WATCHING, ())


def test_what_another_slot_reports_of_a_storage_that_was_waited_for_is_no_second_fault() -> None:
    """Both agents report the folder of the generation before; the restart begins where it can be written."""
    job = running()
    job.see(fact("storage.unwritable", slot=0, node="n0", generation=1))
    late = fact("storage.unwritable", slot=1, node="n1", generation=1)
    job.succeeds(facts=(late,))
    assert job.state.mode is Mode.WATCHING
    assert late.id in job.state.seen_ids
    assert len(job.decisions) == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_what_another_slot_reports_of_a_storage_is_answered_by_a_restart_for_another_reason(
    is_late: bool,
) -> None:
    """The fence of its generation lies in the folders since: they can be written again."""
    job = running()
    job.see(fact("storage.read_only", slot=0, node="n0", generation=1))
    other = fact("storage.read_only", slot=1, node="n1", generation=1)
    job.gives_way(fact("job.preempted"), *(() if is_late else (other,)))
    job.succeeds(facts=(other,) if is_late else ())
    assert job.state.mode is Mode.WATCHING
    assert other.id in job.state.seen_ids
    assert [one.fault.cls for one in job.decisions] == [_C.STORAGE, _C.PREEMPTED]


def test_a_storage_that_fails_again_after_it_was_waited_for_is_another_fault() -> None:
    """The ranks of the new generation, or the cluster itself, report what is so now."""
    for generation in (2, 0):
        job = running()
        job.see(fact("storage.unwritable", slot=0, node="n0", generation=1))
        job.succeeds(facts=(fact("storage.unwritable", generation=generation),))
        assert [one.fault.cls for one in job.decisions] == [_C.STORAGE, _C.STORAGE]


def test_a_fault_during_the_pause_of_an_incident_joins_it() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    job.command("pause")
    job.interrupted()
    job.succeeds(facts=(sighting(_C.NODE, node="n2"),))
    job.command("resume")
    job.interrupted()
    assert job.decisions[-1].remedy.recreate == (1, 2)


def test_a_pause_before_anything_was_placed_ends_in_a_launch_of_its_own_generation() -> None:
    job = ScriptedJob(spec=job_spec())
    first = job.plan.key
    job.command("pause")
    job.interrupted()
    job.succeeds()
    job.command("resume")
    job.interrupted()
    assert job.state.mode is Mode.LAUNCHING
    assert job.plan.key != first


def test_a_fault_that_was_reported_before_a_launch_is_decided_right_after_it() -> None:
    job = ScriptedJob(spec=job_spec())
    job.command("pause")
    job.interrupted()
    while job.state.mode is not Mode.LAUNCHING or job.state.commands:
        if job.state.mode is Mode.PAUSED:
            job.command("report_fault", kind="subhealth.power")
            job.command("resume")
            job.interrupted()
        else:
            job.succeeds()
    assert [each.kind for each in job.state.pending_facts] == ["subhealth.power"]
    job.succeeds()
    assert [each.level for each in job.decisions] == [Level.NOTE]
    assert (job.state.mode, job.state.pending_facts) == (Mode.WATCHING, ())


def test_a_launch_that_failed_before_a_pause_says_nothing_of_the_one_after_it() -> None:
    job = ScriptedJob(spec=job_spec())
    job.command("pause")
    failed = outcome(job.plan, "failed", Step.PLACE, fact("place.none"))
    job._advance(PlanEnded(outcome=failed))
    job.succeeds()
    job.command("resume")
    job.interrupted()
    job.succeeds()
    assert job.state.mode is Mode.WATCHING
    job.report()
    assert (job.state.mode, job.state.pending_facts) == (Mode.WATCHING, ())


@pytest.mark.parametrize("command", [(), ("pause",)], ids=["launch", "pause"])
def test_what_told_no_outcome_is_begun_anew_with_a_generation_of_its_own(
    command: tuple[str, ...],
) -> None:
    """Its own may have been taken by a Recovery that outlived an earlier run."""
    job = ScriptedJob(spec=job_spec())
    for name in command:
        job.command(name)
        job.interrupted()
    keys = [job.plan.key]
    for _ in range(2):
        job.interrupted()
        keys.append(job.plan.key)
    assert len(set(keys)) == 3


def test_a_paused_job_is_not_healthy_by_waiting() -> None:
    job = running(checkpoints_path=None)
    job.see(sighting(_C.CRASH))
    job.succeeds()
    job.command("pause")
    job.interrupted()
    job.succeeds()
    job.report("interrupted", now=job.state.now + 10_000.0)
    assert job.state.ledger.no_progress == 1


def test_a_stop_during_a_recovery_closes_its_books_and_ends_the_job() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.command("stop", grace_s=3)
    assert operators.interrupts(job.state)
    job.interrupted()
    assert isinstance(job.action, Clear)
    assert (job.record.result, job.action.grace_s) == ("terminated", 3)
    job._advance(Cleared())
    ended: object = job.action
    assert ended == End(status="Terminated", reason="stopped by an operator")
    assert {pod["state"] for pod in views.status(job.state)["pods"]} == {"stopped"}


def test_what_ranks_saved_as_they_were_stopped_is_shown_once_the_job_has_ended() -> None:
    job = running()
    job.report(checkpoint=Checkpoint(step=100, path="ckpt/step_100"))
    job.command("stop")
    job.interrupted()
    assert isinstance(job.action, Clear)
    job._advance(Cleared(saved=Checkpoint(step=148, path="ckpt/step_148")))
    status = views.status(job.state)
    assert (status["checkpoint_step"], status["checkpoint_path"]) == (148, "ckpt/step_148")


def test_what_ranks_saved_as_they_were_stopped_is_in_the_result_of_their_phase() -> None:
    job = running()
    job.report(checkpoint=Checkpoint(step=100, path="ckpt/step_100"))
    failed = lifecycle._finished_phase(job.state, "failed", "why")
    job.state = outcomes.ending(failed, "Failed", "why")
    job._advance(Cleared(saved=Checkpoint(step=148, path="ckpt/step_148")))
    assert [phase.last_checkpoint_step for phase in job.state.finished] == [148]


@pytest.mark.parametrize("unreachable", [(), (1,)], ids=["all answer", "a slot is silent"])
def test_a_job_that_ended_waits_for_nothing(unreachable: tuple[int, ...]) -> None:
    """The worker that showed what the end waits for may be gone before that is over."""
    job = running()
    job.command("stop", grace_s=0)
    job.interrupted()
    assert isinstance(job.action, Clear)
    wait = Wait(what="pod demo-1 to go", since=job.state.now)
    job.state = lifecycle.waits(replace(job.state, unreachable=unreachable), wait)
    assert views.status(job.state)["waiting_for"] == "pod demo-1 to go"
    job._advance(Cleared())
    assert views.status(job.state)["waiting_for"] is None


@pytest.mark.parametrize("name", ["stop", "pause"])
def test_a_command_that_comes_with_the_decision_leaves_no_open_record(name: str) -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.command(name)
    state = operators.obey(job.state)
    chronicle = folded(job.chronicle, state.events)
    assert [record.result for record in chronicle.records] == ["terminated"]


WAITS = (
    ("stop ends a launch", Mode.LAUNCHING, "stop", True),
    ("pause ends a launch", Mode.LAUNCHING, "pause", True),
    ("pause ends a recovery", Mode.RECOVERING, "pause", True),
    ("restart waits for the recovery", Mode.RECOVERING, "restart", False),
    ("a report waits for the recovery", Mode.RECOVERING, "report_fault", False),
    ("a report ends the watch", Mode.WATCHING, "report_fault", True),
    ("nothing ends a decision", Mode.DECIDING, "stop", False),
)


@pytest.mark.parametrize(
    ("mode", "name", "at_once"), [r[1:] for r in WAITS], ids=[r[0] for r in WAITS]
)
def test_what_a_command_interrupts(mode: Mode, name: str, at_once: bool) -> None:
    state = replace(running().state, mode=mode)
    args = {"kind": "node.down", "node": "n1"} if name == "report_fault" else {}
    state = operators.commanded(state, commands.accept(state, name, args))
    assert operators.interrupts(state) is at_once


def test_of_several_commands_the_hard_one_comes_first() -> None:
    job = running()
    job.command("pause")
    job.command("stop")
    job.interrupted()
    assert job.state.mode is Mode.CLOSING


def test_a_restart_asked_for_during_a_recovery_comes_after_it() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.command("restart", level="job")
    job.succeeds()
    assert (job.decisions[-1].fault.cls, job.decisions[-1].level) == (_C.PLANNED, Level.JOB)


JOINED = (
    (Level.IN_PLACE, None, True),
    (Level.IN_PLACE, "pod", False),
    (Level.POD, "in_place", True),
    (Level.POD, "pod", False),  # of one slot, and all are meant
    (Level.POD, "job", False),
    (Level.JOB, "pod", True),
    (Level.JOB, "job", True),
)


@pytest.mark.parametrize(("under_way", "level", "is_joined"), JOINED)
def test_a_restart_asked_for_during_one_that_does_the_same_joins_it(
    under_way: Level, level: str | None, is_joined: bool
) -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    assert job.state.plan is not None
    plan = replace(job.state.plan, level=under_way)
    job.state = replace(job.state, plan=plan)
    args = {"id": "a", **({} if level is None else {"level": level})}
    restart = commands.accept(job.state, "restart", args)
    joined = f"restart 1 ({under_way})" if is_joined else None
    assert operators.restart_joined(job.state, restart) == joined
    state = operators.without_joined(operators.commanded(job.state, restart), plan)
    assert bool(state.commands) is not is_joined
    assert state.applied_ids == ("a",), "sent again it is known"


def test_a_joined_restart_is_not_followed_by_another_one() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.command("restart")
    job.succeeds()
    assert job.state.mode is Mode.WATCHING
    assert [decision.fault.cls for decision in job.decisions] == [_C.CRASH]


def test_a_restart_for_a_changed_document_joins_none() -> None:
    """What is under way follows the document as it was."""
    job = running()
    job.see(sighting(_C.CRASH))
    plan, restart = job.state.plan, commands.accept(job.state, "restart", {})
    assert plan is not None
    for may_join in (False, True):  # one that could join does not take it along
        job.state = operators.commanded(job.state, restart, may_join=may_join)
        assert operators.without_joined(job.state, plan).commands


def test_a_restart_that_is_requested_during_the_launch_joins_it() -> None:
    job = ScriptedJob(spec=job_spec())
    job.command("restart", level="job")
    job.launches()
    assert (job.state.mode, job.state.commands, job.decisions) == (Mode.WATCHING, (), [])


def test_a_restart_that_joined_one_which_failed_is_made() -> None:
    """No backup pod was ready, and the fault needs nothing else."""
    job = running(with_ladder(Policy(stands_by=(_C.SUBHEALTH,)), _C.SUBHEALTH, Level.POD))
    job.see(sighting(_C.SUBHEALTH))
    job.command("restart", reason="new settings")
    job._end("failed", Step.STANDBY, {}, fact("standby.none"))
    job.interrupted()
    assert job.decisions[-1].reason == "planned: new settings"


def test_a_restart_joins_no_plan_that_keeps_processes_or_starts_none() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    restart = commands.accept(job.state, "restart", {})
    plan = job.state.plan
    assert plan is not None
    for other in (replace(plan, keep=(0,)), replace(plan, remedy=replace(plan.remedy, steps=()))):
        state = replace(job.state, plan=other)
        assert operators.restart_joined(state, restart) is None
    # The launch has no number and creates all pods.
    launching = replace(job.state, mode=Mode.LAUNCHING, plan=None)
    assert operators.restart_joined(launching, restart) == "the launch"


REPORTS: tuple[tuple[str, dict[str, str], dict[str, str], float, int], ...] = (
    ("the same words within a minute are one", {}, {}, 1.0, 1),
    ("with another id they are two", {"id": "a"}, {"id": "b"}, 1.0, 2),
    ("with the same id they are one, whenever", {"id": "a"}, {"id": "a"}, 900.0, 1),
    ("later they are two", {}, {}, 300.0, 2),
    ("other words are two", {}, {"code": "77"}, 1.0, 2),
)


@pytest.mark.parametrize(
    ("first", "second", "later_s", "known_count"),
    [r[1:] for r in REPORTS],
    ids=[r[0] for r in REPORTS],
)
def test_a_fault_reported_twice(
    first: dict[str, str], second: dict[str, str], later_s: float, known_count: int
) -> None:
    job = running()
    before = len(job.state.seen_ids)
    for args in (first, second):
        job.command("report_fault", kind="subhealth.power", node="n1", **args)
        job.interrupted()
        job.report("refresh", now=job.state.now + later_s - 20.0)
    assert len({*job.state.seen_ids}) - before == known_count


def test_a_report_may_say_when_it_was_in_words() -> None:
    job = running()
    job.command("report_fault", kind="node.down", node="n1", at="1970-01-01T00:16:39Z")
    job.interrupted()
    assert job.decisions[-1].fault.at == 999.0
    with pytest.raises(CommandRejected, match="at is seconds or a time"):
        job.command("report_fault", kind="node.down", at="yesterday")


def test_an_update_that_only_left_its_id_is_not_kept() -> None:
    job = running()
    note = replace(commands.accept(job.state, "pause", {"id": "x"}), name="note")
    state = operators.commanded(job.state, note)
    assert (state.commands, state.applied_ids) == ((), ("x",))


def test_known_identities_have_a_bound() -> None:
    job = running()
    for _ in range(60):
        job.see(*(sighting(_C.SUBHEALTH) for _ in range(20)))
    assert len(job.state.seen_ids) == FACT_IDS_KEPT


# -- Phases and ends ----------------------------------------------------------------------------


def test_each_phase_has_its_own_books_and_the_isolations_stay() -> None:
    job = running(Policy(no_progress_restarts=1))
    second = replace(job.spec.phases[0], name="second")
    spec = replace(job.spec, phases=(*job.spec.phases, second))
    job.state = replace(job.state, spec=spec)
    job.see(sighting(_C.NODE))
    job.succeeds()
    job.report("done")
    assert isinstance(job.action, NextPhase)
    job.state = lifecycle.enter_phase(job.state, 1)
    job._advance(Begun())
    assert (job.plan.phase.name, job.state.ledger.recoveries) == ("second", 0)
    assert "n1" in job.state.isolated
    assert [r["phase"] for r in responses.restarts(job.chronicle)] == ["main"]


def test_all_ranks_that_end_well_complete_the_job() -> None:
    job = running()
    job.report("done")
    assert isinstance(job.action, Clear)
    assert responses.report(job.state, job.chronicle)["status"] == "Completed"


def test_a_limit_of_the_document_fails_the_phase() -> None:
    job = running(limits={"run_s": 100.0})
    assert isinstance(job.action, WatchAction)
    assert job.action.order.ends_at == job.state.phase_started_at + 100.0  # type: ignore[operator]  # set at Begun
    assert job.action.order.ended_by == "its run_s"
    assert job.see(fact("limit.run")).level is Level.FAIL


def test_a_world_moved_by_another_run_is_read_before_anything_is_done() -> None:
    job = running()
    job.report("moved", generation=5)
    assert isinstance(job.action, Observe)
    job.finds(started=True, generation=5)
    assert (job.state.mode, job.state.generation) == (Mode.WATCHING, 5)
    job.report("moved", generation=7)
    job.finds(started=False, generation=7)
    assert job.decisions[-1].fault.kind == "world.moved"


@pytest.mark.parametrize(("ran", "kind"), [(1, "process.exit"), (2, "world.moved")])
def test_a_crash_that_nobody_started_anything_after_is_why_the_world_stands_still(
    ran: int, kind: str
) -> None:
    """Its answer was begun in a history that is forgotten: it counts as if it were seen first now."""
    job = running(cerebras(max_num_restarts=3))
    job.report("moved", generation=3, facts=(fact("process.exit", slot=1, generation=1),))
    job.finds(started=False, generation=3, ran=ran)
    decision = job.decisions[-1]
    assert (decision.fault.kind, decision.counts_no_progress) == (kind, ran == 1)
    assert job.state.generation == 3


def test_where_that_crash_is_only_noted_the_job_does_not_stand_still() -> None:
    job = running(Policy(rules=(Rule(match=Match(kind="process.exit"), action="ignore"),)))
    job.report("moved", generation=2, facts=(fact("process.exit", slot=1, generation=1),))
    job.finds(started=False, generation=2, ran=1)
    assert job.decisions[-1].fault.kind == "world.moved"
    assert job.state.mode is Mode.RECOVERING


def test_a_watch_that_ends_with_facts_and_no_command_has_them_decided() -> None:
    job = running()
    job.report("interrupted", facts=(sighting(_C.CRASH),))
    assert job.decisions[-1].level is Level.IN_PLACE


def test_progress_is_waited_for_only_where_it_ends_a_row() -> None:
    job = running(checkpoints_path=None)
    job.report("refresh", step=3)
    assert not awaits_progress(job)
    job.see(sighting(_C.CRASH))
    job.succeeds()
    assert awaits_progress(job)
    job.report("refresh", step=3)
    assert awaits_progress(job)
    job.report("refresh", step=4)
    assert not awaits_progress(job)


def awaits_progress(job: ScriptedJob) -> bool:
    assert isinstance(job.action, WatchAction)
    return job.action.order.awaits is not None


def test_a_superseded_plan_that_did_not_finish_its_level_leaves_no_trace_of_running() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    ended = outcome(job.plan, "superseded", Step.STOP, None)
    job._advance(PlanEnded(outcome=ended))
    assert (job.state.running_since, job.decisions[-1].repeats) == (None, 1)


@pytest.mark.parametrize("end", ["succeeds", "stop"])
def test_a_wait_is_over_with_the_plan_that_had_it(end: str) -> None:
    job = ScriptedJob(spec=job_spec())
    job.state = lifecycle.waits(job.state, Wait(what="1 more node", since=7.0, until=9.0))
    if end == "stop":
        job.command("stop")
        job.interrupted()
    else:
        job.succeeds()
    status = views.status(job.state)
    assert {status[key] for key in ("waiting_for", "waiting_since", "waiting_until")} == {None}


def test_a_wait_that_is_reported_again_began_when_it_was_first_reported() -> None:
    job = ScriptedJob(spec=job_spec())
    for since in (7.0, 8.0):
        job.state = lifecycle.waits(job.state, Wait(what="1 more node", since=since))
    assert job.state.waiting == Wait(what="1 more node", since=7.0)
