"""The loop of a job: a state and an event give the next state and the next action (`next_actions`).

    PENDING -> LAUNCHING                the phase begins
    LAUNCHING -> WATCHING               its processes run; DECIDING if the launch failed
    WATCHING  -> DECIDING               there are facts
              -> REPORTING -> WATCHING    isolations have still to be sent to the quarantine
              -> READING                another run of the job moved its processes
              -> PENDING                the phase is done and another one follows
    DECIDING  -> RECOVERING             the decision is a restart; after a note WATCHING, or
                                        LAUNCHING if no processes run
    RECOVERING -> WATCHING              training runs again; DECIDING if a step failed or facts came
              -> READING                its outcome was lost: look at the cluster once
    READING   -> WATCHING or DECIDING   what the cluster shows; REPORTING before WATCHING, as above
    PAUSING   -> PAUSED                 by a command; `resume` leads to DECIDING
    any mode  -> CLOSING -> ENDED       done, failed, stopped or refused

`advance` looks up (mode, event) in `TABLE`; a pair without a row is a bug. It never judges a fault:
`decide.py` does. Pure: the workflow drives it with activities, the simulator with direct calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from everstep.core.deciding.decision import Decision, Outcome, Plan
from everstep.core.errors import LifecycleBug
from everstep.core.facts import Fact
from everstep.core.levels import Level, Step
from everstep.core.loop import bookkeeping, commands, outcomes
from everstep.core.loop.job_events import (
    AllEndedWell,
    GivenUp,
    JobEvent,
    NoticesWanted,
    PhaseBegan,
    PhaseEnded,
    RunBegan,
)
from everstep.core.loop.next_actions import (
    Action,
    Begun,
    Cleared,
    Decided,
    Event,
    PlanEnded,
    Undecided,
    Watched,
    next_action,
    run_plan,
)
from everstep.core.loop.operators import interrupts, obey, without_joined, without_restarts
from everstep.core.recovering import snapshots
from everstep.core.recovering.plans import launch_plan, pause_plan, recovery_plan, report_plan
from everstep.core.seeing.progress import is_at_last_step
from everstep.core.seeing.watch_report import WatchReport, all_started
from everstep.core.spec import JobSpec
from everstep.core.state import JobState, Learned, Ledger, Mode, Wait, happened, phase_result
from everstep.core.waits import WaitKind, WaitReason
from everstep.core.world import Checkpoint, JobRef


def advance(state: JobState, event: Event) -> tuple[JobState, Action, tuple[JobEvent, ...]]:
    """The state after the event, what is to be done next, and what happened on the way."""
    transition = TABLE.get((state.mode, type(event)))
    if transition is None:
        raise LifecycleBug(f"{type(event).__name__} in mode {state.mode}: no row for this pair")
    state = waits(state, None)
    if isinstance(event, PlanEnded) and event.refused:
        state = _refused(state, event.refused)
    else:
        state = obey(transition(state, event))  # commands that wait may change what follows
    events, state = state.events, replace(state, events=())
    return state, next_action(state), events


def _refused(state: JobState, why: str) -> JobState:
    """End a job that the cluster refuses, whatever was planned for it."""
    state = outcomes.defer_open_isolations(state)
    if state.plan is not None and state.plan.n:
        state = outcomes.lost(state, state.plan)
    return outcomes.ending(state, "Invalid", why)


CARRYING_OUT = (Mode.LAUNCHING, Mode.RECOVERING, Mode.PAUSING, Mode.REPORTING)


def waits(state: JobState, wait: Wait | None) -> JobState:
    """The state with this wait; None: it is over, unless the job waits for pods that are unreachable.

    A pause that could not stop all processes waits for their end whenever it waits for nothing else.
    A wait that another try reports again keeps its beginning.
    """
    if state.mode is Mode.ENDED or (wait is None and state.unreachable):
        return state
    before = state.waiting
    if wait is not None and before is not None and wait.what == before.what:
        wait = replace(wait, since=before.since)
    unstopped = state.unstopped if state.mode is Mode.PAUSED else None
    return replace(state, waiting=wait or unstopped)


STORAGE_REASONS = (WaitReason.STORAGE_UNAVAILABLE, WaitReason.CHECKPOINTS_MISSING)


def begins_to_await_storage(state: JobState, wait: Wait | None) -> bool:
    """Whether a plan waits for storage from now on, and its decision did not announce that."""
    if wait is None or wait.reason not in STORAGE_REASONS or state.mode not in CARRYING_OUT:
        return False
    is_announced = Step.WRITABLE in run_plan(state).plan.remedy.steps
    waits_already = state.waiting is not None and state.waiting.reason in STORAGE_REASONS
    return not (is_announced or waits_already)


def plan_key(state: JobState) -> str | None:
    """Which plan is being carried out."""
    return run_plan(state).plan.key if state.mode in CARRYING_OUT else None


# -- The rows -----------------------------------------------------------------------------------


def opened(job: JobRef, spec: JobSpec, *, at: float | None = None) -> JobState:
    """A job whose document was read at this time, before anything is reported of its cluster."""
    waiting = Wait.of(WaitKind.WORKER.of(spec.cluster), since=at)
    job = replace(job, namespace=spec.namespace)
    return JobState(job=job, spec=spec, phase_index=spec.first_phase, waiting=waiting)


def _begin(state: JobState, _event: Begun) -> JobState:
    state = happened(
        state,
        RunBegan(at=state.now, job=state.job.id, run=state.job.first_run or state.job.run),
        NoticesWanted(at=state.now, wanted=state.spec.events),
    )
    if state.mode is not Mode.PENDING:  # a new run of a job that goes on: its mode says where
        return state
    if interrupts(state):  # stopped before it could begin
        return state
    phase = state.phase
    began = PhaseBegan(
        at=state.now,
        phase=phase.name,
        model_dir=phase.model_dir,
        workdir=phase.workdir,
        nodes=phase.nodes,
    )
    state = replace(without_restarts(state), mode=Mode.LAUNCHING, phase_started_at=state.now)
    return happened(state, began)


def _launch_ended(state: JobState, event: PlanEnded) -> JobState:
    plan = state.plan or launch_plan(state)
    if event.outcome is None:
        # The launch is repeated, which its steps allow.
        return replace(state, plan=None, repeats=state.repeats + 1)
    outcome = event.outcome
    state = happened(outcomes.launched(state, plan, outcome), outcomes.launch_ended(outcome))
    if outcome.result == "success" and not (outcome.facts or state.pending_facts):
        return replace(without_joined(state, plan), mode=Mode.WATCHING)
    cause = (outcome.cause,) if outcome.cause is not None else ()
    unplaced = {n for n, slot in state.slots.items() if not slot.uid}
    missing = tuple(sorted({*unplaced, *outcome.lost_containers}))
    facts = (*state.pending_facts, *cause, *outcome.facts)
    return replace(
        state, mode=Mode.DECIDING, pending_facts=facts, outcome=outcome, lost_containers=missing
    )


def _recovery_ended(state: JobState, event: PlanEnded) -> JobState:
    plan, outcome = state.plan, event.outcome
    if plan is None:
        return state
    if outcome is None:
        state = outcomes.lost(state, plan)
        return replace(state, mode=Mode.READING, lost_plan=plan)
    state = outcomes.recovered(state, plan, outcome)
    facts = (*state.pending_facts, *outcome.facts)
    if outcome.result == "success":
        mended = outcomes.mended(plan, outcome, facts)
        state = bookkeeping.mark_answered(state, mended)
        facts = tuple(fact for fact in facts if fact not in mended)
        mode = Mode.DECIDING if facts else Mode.WATCHING
        return replace(without_joined(state, plan), mode=mode, pending_facts=facts)
    unplaced = () if plan.level is Level.JOB else _unplaced(plan, outcome)
    missing = (n for n in state.active if not state.slots[n].uid)
    missing_slots = tuple(
        sorted({*state.lost_containers, *missing, *unplaced, *outcome.lost_containers})
    )
    return replace(
        state,
        mode=Mode.DECIDING,
        pending_facts=facts,
        outcome=outcome,
        lost_containers=missing_slots,
    )


def _unplaced(plan: Plan, outcome: Outcome) -> tuple[int, ...]:
    """The slots that were to get new pods and did not: they still need them."""
    if outcome.step is Step.STANDBY or outcomes.carried_out(plan, outcome, Step.PLACE):
        return ()
    return tuple(slot for slot in plan.remedy.recreate if slot not in outcome.pods)


def _pause_ended(state: JobState, event: PlanEnded) -> JobState:
    plan = state.plan
    if event.outcome is None or plan is None:
        state = replace(state, repeats=state.repeats + 1)
        return replace(state, plan=pause_plan(state))
    state, outcome = outcomes.launched(state, plan, event.outcome), event.outcome
    facts = (*state.pending_facts, *outcome.facts)
    state = replace(state, mode=Mode.PAUSED, pending_facts=facts, unstopped=None)
    if outcome.cause is None:
        return state
    # Processes that did not confirm their end may still run: the resume stops or replaces them.
    unstopped = Wait.of(WaitKind.STOP.of(outcome.cause.message), since=outcome.now)
    return waits(replace(state, unstopped=unstopped), None)


def _reporting_ended(state: JobState, event: PlanEnded) -> JobState:
    plan, outcome = state.plan, event.outcome
    if plan is None or outcome is None:
        return replace(state, mode=Mode.WATCHING, plan=None)
    return replace(outcomes.isolated_later(state, plan, outcome), mode=Mode.WATCHING)


def _watched(state: JobState, event: Watched) -> JobState:
    state = bookkeeping.apply_report(state, event.report)
    return NEWS[event.report.news](state, event.report)


def _news_facts(state: JobState, report: WatchReport) -> JobState:
    facts = (*state.pending_facts, *report.facts)
    return replace(state, mode=Mode.DECIDING if facts else Mode.WATCHING, pending_facts=facts)


def _news_done(state: JobState, _report: WatchReport) -> JobState:
    """The phase is over. The last one ends the job; before it the pods wait for the next."""
    if state.ledger.checking.is_on and not is_at_last_step(state):
        checked = commands.numbers_checked_fact(at=state.now, generation=state.generation)
        return replace(state, mode=Mode.DECIDING, pending_facts=(*state.pending_facts, checked))
    why = "all ranks ended well"
    state = happened(state, AllEndedWell(at=state.now, slots=state.active))
    state = _finished_phase(state, "completed", why)
    if state.phase_index + 1 < len(state.spec.phases):
        return replace(state, mode=Mode.PENDING)
    return outcomes.ending(state, "Completed", why)


def _news_moved(state: JobState, report: WatchReport) -> JobState:
    facts = (*state.pending_facts, *report.facts)
    return replace(state, mode=Mode.READING, lost_plan=None, pending_facts=facts)


def _news_none(state: JobState, report: WatchReport) -> JobState:
    """Nothing new, or a command ended the watch: then facts it had gathered are not lost."""
    facts = (*state.pending_facts, *report.facts)
    is_left = bool(facts) and state.mode is Mode.WATCHING and not interrupts(state)
    return replace(state, mode=Mode.DECIDING if is_left else state.mode, pending_facts=facts)


def _news_refresh(state: JobState, report: WatchReport) -> JobState:
    return _report_deferred(_news_none(state, report))


def _report_deferred(state: JobState) -> JobState:
    """A quiet moment: the time to send the quarantine what it missed."""
    if not state.deferred or state.mode is not Mode.WATCHING:
        return state
    return replace(state, mode=Mode.REPORTING, plan=report_plan(state))


def _news_back(state: JobState, _: WatchReport) -> JobState:
    """No slot is silent any more: nothing is waited for."""
    return waits(replace(state, unreachable=()), None)


def _news_activity_resumed(state: JobState, _: WatchReport) -> JobState:
    """What was suspected to hang moves again."""
    return replace(state, suspected=None)


NEWS: Mapping[str, Callable[[JobState, WatchReport], JobState]] = {
    "facts": _news_facts,
    "done": _news_done,
    "back": _news_back,
    "activity_resumed": _news_activity_resumed,
    "moved": _news_moved,
    "refresh": _news_refresh,
    "interrupted": _news_none,
    "warned": _news_none,
}


def _cluster_read(state: JobState, event: Watched) -> JobState:
    """Go on from what the cluster shows, where it is unknown what runs.

    A Recovery ended without an outcome (`lost_plan`), or another run of this job moved its processes.
    """
    report, lost_plan = event.report, state.lost_plan
    state = replace(bookkeeping.apply_report(state, report), lost_plan=None)
    before = state  # its slots and generation are those of the job, not yet of the cluster
    started_slots = all_started(report)
    all_run = outcomes.may_be_all(state, lost_plan, started_slots)
    state = outcomes.adopted(state, report, active=started_slots if all_run else state.active)
    if lost_plan is not None:
        if not (all_run and report.generation > lost_plan.generation):
            return replace(state, mode=Mode.DECIDING)  # the same level again: the incident is open
        state = outcomes.found_done(state, lost_plan, before.slots)
    if not all_run:
        moved = commands.world_moved_fact(at=state.now, generation=state.generation)
        facts = (*_facts_of_last_run(state, report), moved)
        return replace(state, mode=Mode.DECIDING, pending_facts=facts)
    if before.generation != state.generation:
        state = outcomes.started(state, state.now)
    if state.pending_facts:
        return replace(state, mode=Mode.DECIDING)
    return _report_deferred(replace(state, mode=Mode.WATCHING))


def _facts_of_last_run(state: JobState, report: WatchReport) -> tuple[Fact, ...]:
    """The pending facts. Those of the last processes that ran count for the newest generation.

    With their own generation they would count as late, though the newest one may have started no process yet.
    """
    last_run = max((pod.generation for pod in report.pods), default=0)
    return tuple(
        replace(fact, generation=state.generation)
        if fact.generation > 0 and fact.generation >= last_run
        else fact
        for fact in state.pending_facts
    )


def _decided(state: JobState, event: Decided) -> JobState:
    """Bill and record the decision, then hand out its plan."""
    decision = event.decision
    later = tuple(fact for fact in state.pending_facts if fact.id in decision.facts_for_later)
    answered = tuple(
        fact for fact in state.pending_facts if fact.id not in decision.facts_for_later
    )
    state = bookkeeping.mark_answered(state, answered)
    state = replace(state, pending_facts=later, outcome=None)
    before = state.incident
    state = bookkeeping.apply_refusals(state, decision)
    if decision.level is Level.FAIL:
        given_up = GivenUp(at=state.now, decision=decision, generation=state.generation)
        return _failed(happened(state, given_up), decision)
    if not decision.is_executed:
        state = bookkeeping.apply_note(state, decision)
        if state.running_since is None:
            return replace(state, mode=Mode.LAUNCHING)
        return replace(state, mode=Mode.WATCHING, incident=None)
    state = bookkeeping.apply_restart(state, decision, before=before)
    plan = recovery_plan(state, decision, state.ledger.recoveries)
    return replace(state, mode=Mode.RECOVERING, plan=plan)


def _undecided(state: JobState, _event: Undecided) -> JobState:
    """No new facts: the command that waits is obeyed now."""
    return state


def _failed(state: JobState, decision: Decision) -> JobState:
    is_time_over = decision.fault.kind.startswith("limit.") and state.phase.policy.stops_at_limit
    how, ending = ("stopped", "Terminated") if is_time_over else ("failed", "Failed")
    why = f"phase {state.phase.name}: {decision.reason}"
    worker = bookkeeping.worker_of(state, decision.fault)
    state = outcomes.deferring(bookkeeping.apply_note(state, decision), decision)
    state = _finished_phase(state, how, why, worker=worker)
    if snapshots.may_be_sound(state, decision.fault.cls):  # agents save what memory alone holds
        state = replace(state, stop_grace_s=state.phase.limits.grace_s)
    return outcomes.ending(state, ending, why)


def _cleared(state: JobState, event: Cleared) -> JobState:
    state = replace(outcomes.cleared(state, event.isolated), mode=Mode.ENDED, waiting=None)
    return state if event.saved is None else _saved_at_the_end(state, event.saved)


def _saved_at_the_end(state: JobState, saved: Checkpoint) -> JobState:
    """The state with what the ranks saved as they were stopped, in the result of their phase too."""
    finished = tuple(
        replace(result, last_checkpoint_step=saved.step)
        if result.name == state.phase.name
        else result
        for result in state.finished
    )
    return replace(state, saved=saved, finished=finished)


def _finished_phase(state: JobState, how: str, why: str, *, worker: int | None = None) -> JobState:
    result = phase_result(state, how)
    step, saved = state.generation_step, state.saved
    over = PhaseEnded(at=state.now, state=how, reason=why, step=step, saved=saved, worker=worker)
    return happened(replace(state, finished=(*state.finished, result)), over)


Transition = Callable[[JobState, Any], JobState]

TABLE: Mapping[tuple[Mode, type], Transition] = {
    **{(mode, Begun): _begin for mode in Mode},
    (Mode.LAUNCHING, PlanEnded): _launch_ended,
    (Mode.RECOVERING, PlanEnded): _recovery_ended,
    (Mode.PAUSING, PlanEnded): _pause_ended,
    (Mode.REPORTING, PlanEnded): _reporting_ended,
    (Mode.WATCHING, Watched): _watched,
    (Mode.PAUSED, Watched): _watched,
    (Mode.READING, Watched): _cluster_read,
    (Mode.DECIDING, Decided): _decided,
    (Mode.DECIDING, Undecided): _undecided,
    (Mode.CLOSING, Cleared): _cleared,
}


def enter_phase(state: JobState, index: int) -> JobState:
    """The state with which a phase begins: its own ledger, pace and slots; what the job remembers stays."""
    return replace(
        state,
        mode=Mode.PENDING,
        phase_index=index,
        slots={},
        resume=None,
        snapshot=None,
        remembered=None,
        step=None,
        saved=None,
        running_since=None,
        alive_until=None,
        phase_started_at=None,
        first_step_at=None,
        ledger=Ledger(),
        incident=None,
        plan=None,
        lost_plan=None,
        outcome=None,
        unreachable=(),
        waiting=None,
        suspected=None,
        warnings=(),
        lost_containers=(),
        limits={},
        runs=0,
        learned=Learned(),
    )
