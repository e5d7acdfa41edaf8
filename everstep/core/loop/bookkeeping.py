"""What a decision and an outcome do to the books: bills, series, slots, isolations.

Mechanical: every number comes from the decision or the outcome; nothing is judged here. What happens by
it is said here too, as job events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from everstep.core.deciding import budgets, run_ends
from everstep.core.deciding.decision import Decision, Fault, Outcome, Plan, Result, Waited
from everstep.core.facts import Fact
from everstep.core.levels import RESCHEDULING, FaultClass, Level, Step
from everstep.core.loop.job_events import (
    BillReturned,
    FaultNoted,
    FirstStepSeen,
    JobEnding,
    LevelRefused,
    NodeIsolated,
    Prechecked,
    ProcessesEnded,
    RestartDecided,
    RestartEnded,
    Started,
    WarningBegan,
    WarningOver,
)
from everstep.core.recovering.plans import NEW_SLOT
from everstep.core.seeing.progress import found_further, progressed, starting_mark
from everstep.core.seeing.watching import WatchReport
from everstep.core.state import (
    FACTS_KNOWN,
    OCCURRENCES_KEPT,
    Incident,
    JobState,
    Learned,
    Mode,
    Slot,
    Suspected,
    happened,
    remember_ids,
    with_ledger,
)
from everstep.core.world import PodState

# -- What was seen ------------------------------------------------------------------------------


def seen(state: JobState, report: WatchReport) -> JobState:
    """The state after a watcher's report: time, steps, checkpoints, pods, progress."""
    living = frozenset(state.living)
    warnings = state.warnings
    state = replace(
        state,
        now=max(state.now, report.now),
        cursor=report.cursor,
        step=report.step if report.step is not None else state.step,
        stepped_in=state.generation if report.step is not None else state.stepped_in,
        saved=report.checkpoint or state.saved,
        running_since=report.running_since or state.running_since,
        alive_until=report.alive_until or state.alive_until,
        learned=report.learned,
        warnings=report.warnings,
        slots=_slots_seen(state, report),
        can=report.can,
        gone=tuple(slot for slot in report.gone if slot in living),
    )
    state = progressed(_first_step(ended(state, report.facts), report))
    return happened(
        state,
        *(WarningBegan(at=w.at, text=w.text) for w in report.warnings if w not in warnings),
        *(WarningOver(at=state.now, text=w.text) for w in warnings if w not in report.warnings),
    )


def ended(state: JobState, facts: Iterable[Fact]) -> JobState:
    """The state once it is said which processes ended."""
    ends = tuple(fact for fact in facts if fact.kind == "process.exit")
    return happened(state, ProcessesEnded(at=state.now, ends=ends)) if ends else state


def _slots_seen(state: JobState, report: WatchReport) -> dict[int, Slot]:
    slots = dict(state.slots)
    for pod in report.pods:
        old = slots.get(pod.slot)
        if old is not None and old.uid == pod.uid and old.state != pod.state:
            slots[pod.slot] = old._replace(state=PodState(pod.state))
    return slots


def _first_step(state: JobState, report: WatchReport) -> JobState:
    if report.first_step_at is None or state.first_step_at is not None:
        return state
    state = replace(state, first_step_at=report.first_step_at)
    started_at = state.running_since
    took = max(report.first_step_at - started_at, 0.0) if started_at is not None else 0.0
    learned = replace(state.learned, longest_start_s=max(state.learned.longest_start_s, took))
    seen = FirstStepSeen(at=report.first_step_at, generation=state.generation)
    return happened(replace(state, learned=learned), seen)


def told(state: JobState, facts: tuple[Fact, ...]) -> JobState:
    """The state with these facts known, so that none is ever news again."""
    ids = tuple(fact.id for fact in facts)
    return replace(state, seen_ids=remember_ids(state.seen_ids, ids, kept=FACTS_KNOWN))


# -- What was decided ---------------------------------------------------------------------------


def noted(state: JobState, decision: Decision) -> JobState:
    """After a decision that leaves the world alone."""
    state = _occurred(state, decision)
    if decision.level is Level.NOTE:
        noted = FaultNoted(at=state.now, decision=decision, generation=state.generation)
        state = happened(state, noted)
    if decision.fault.cls is FaultClass.UNREACHABLE:
        return replace(state, unreachable=decision.fault.slots, waiting_for=decision.waiting_for)
    if decision.fault.cls is FaultClass.HANG and decision.level is Level.NOTE:
        text = f"suspected suspension: {decision.fault.message or decision.reason}"
        return replace(state, suspected=Suspected(at=decision.at, text=text))
    return state


def refused(state: JobState, decision: Decision) -> JobState:
    """Every level that a budget stopped has a number of its own; nothing is billed."""
    for refusal in decision.refused:
        state, incident = _with_incident(state, decision)
        state = with_ledger(state, recoveries=state.ledger.recoveries + 1)
        refused = LevelRefused(
            at=state.now,
            n=state.ledger.recoveries,
            incident=incident.n,
            decision=replace(decision, level=refusal.level, bills={}),
            budget=refusal.budget,
            generation=state.generation,
            worker=incident.worker,
        )
        state = happened(state, refused)
    return state


def reserved(state: JobState, decision: Decision) -> JobState:
    """The books before the Recovery starts: billed, counted, recorded. A kill from here on is safe."""
    before = state
    state, incident = _with_incident(_occurred(state, decision), decision)
    ledger, cls = state.ledger, decision.fault.cls
    escalation = dict(ledger.escalation)
    is_first_try = decision.repeats is None  # else it was counted before its outcome was lost
    n = ledger.recoveries + 1
    if decision.counts_spacing:
        escalation[cls] = escalation.get(cls, 0) + 1
    state = with_ledger(
        state,
        used=budgets.charge(ledger.used, decision.bills),
        bills={**({} if is_first_try else ledger.bills), n: dict(decision.bills)},
        series=_series(before, decision),
        escalation=escalation,
        no_progress=ledger.no_progress + decision.counts_no_progress,
        spacing=ledger.spacing + decision.counts_spacing,
        recoveries=n,
        restarts=ledger.restarts + is_first_try,
        reschedules=ledger.reschedules + (is_first_try and decision.level in RESCHEDULING),
    )
    decided = RestartDecided(
        at=state.now,
        n=n,
        incident=incident.n,
        decision=decision,
        generation=state.generation,
        worker=incident.worker,
        step=state.step,
        was_running=state.running_since is not None,
    )
    return happened(state, decided)


def _series(state: JobState, decision: Decision) -> dict[str, int]:
    """The series after this restart: one of another kind comes between those of a series and ends it.

    The next level for the same fault, and the same level once more, come between nothing.
    """
    known, incident = state.ledger.series, state.incident
    is_same = incident is not None and incident.decision.fault.cls is decision.fault.cls
    kept = known if is_same else {name: known[name] for name in decision.counts if name in known}
    return {**kept, **{name: known.get(name, 0) + 1 for name in decision.counts}}


def worker_of(state: JobState, fault: Fault) -> int | None:
    """The slot that a fault is in, or the lowest one on its node."""
    if fault.slot is not None:
        return fault.slot
    there = (n for n in state.living if fault.node and state.slots[n].node == fault.node)
    return next(there, None)


def _occurred(state: JobState, decision: Decision) -> JobState:
    known = (*state.occurrences, *decision.occurrences)
    state = replace(state, occurrences=known[-OCCURRENCES_KEPT:])
    return run_ends.counted(state, decision)


def _with_incident(state: JobState, decision: Decision) -> tuple[JobState, Incident]:
    """The open incident with its newest decision. Whose fault it is, is known from the first on."""
    incident = state.incident
    if incident is None:
        number = state.ledger.incidents + 1
        state = with_ledger(state, incidents=number)
        incident = Incident(n=number, started_at=decision.fault.at, decision=decision)
    worker = worker_of(state, decision.fault) if incident.worker is None else incident.worker
    incident = replace(incident, decision=decision, worker=worker)
    return replace(state, incident=incident), incident


# -- What came of it ----------------------------------------------------------------------------


def launched(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """After a launch: the slots it made, and where the training resumes from."""
    return _began(state, _moved(_told_by(state, outcome), plan, outcome), outcome)


RECORD_RESULT: Mapping[Result, str] = {
    "success": "success",
    "failed": "downgrade",
    "superseded": "terminated",
}


def recovered(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """After a Recovery that told its outcome, whatever it was."""
    before, mark = state, state.ledger.mark
    state = found_further(_moved(_told_by(state, outcome), plan, outcome), mark)
    if outcome.result == "failed":
        state = _one_more_failure(_given_back(state))
    state = happened(state, _outcome_of(plan, outcome, before, state))
    state = _began(before, state, outcome)
    return replace(state, incident=None) if outcome.result == "success" else state


def _outcome_of(plan: Plan, outcome: Outcome, before: JobState, after: JobState) -> RestartEnded:
    old, new = _changed_nodes(before.slots, after.slots)
    return RestartEnded(
        at=outcome.now,
        n=plan.n,
        result=RECORD_RESULT[outcome.result],
        generation=outcome.generation if outcome.was_started else None,
        isolated=bool(outcome.isolated),
        before=old,
        after=new,
        resume_step=starting_step(after, run=after.runs + 1) if outcome.was_started else None,
        evidence=outcome.evidence,
        stages_s=outcome.stages_s,
        notes=outcome.notes,
        waited=outcome.waited,
    )


def _told_by(state: JobState, outcome: Outcome) -> JobState:
    """The state once it is said what a plan saw, but for the ends of those that it started."""
    before = (fact for fact in _seen_by(outcome) if fact.generation != outcome.generation)
    if outcome.prechecked is None:
        return ended(state, before)
    began, at = outcome.prechecked
    found = Prechecked(
        at=at,
        began=began,
        slots=outcome.living,
        failed=tuple(f for f in _seen_by(outcome) if f.family == "precheck"),
        passed=outcome.step is not Step.PRECHECK,
    )
    return ended(happened(state, found), before)


def _seen_by(outcome: Outcome) -> tuple[Fact, ...]:
    cause = () if outcome.cause is None else (outcome.cause,)
    return tuple({fact.id: fact for fact in (*cause, *outcome.facts)}.values())


def _began(before: JobState, state: JobState, outcome: Outcome) -> JobState:
    is_new = before.generation != state.generation or before.running_since is None
    if is_new and state.running_since is not None:
        state = started(state, state.running_since, waited=outcome.waited)
    return ended(state, (f for f in _seen_by(outcome) if f.generation == outcome.generation))


def started(state: JobState, at: float, *, waited: tuple[Waited, ...] = ()) -> JobState:
    """The state once all processes were started anew: one more run of them."""
    state = replace(state, runs=state.runs + 1)
    start = Started(
        at=at,
        run=state.runs,
        generation=state.generation,
        slots=state.living,
        nodes=tuple(sorted({slot.node for slot in state.slots.values() if slot.node})),
        starting_step=starting_step(state, run=state.runs),
        resume=state.resume,
        waited=waited,
    )
    return happened(state, start)


def starting_step(state: JobState, *, run: int) -> int | None:
    """Before the first run of a job there is nothing. Later a script may find what nobody else knows of."""
    if state.resume is not None:
        return state.resume.step
    was_run_before = state.phase_index == state.spec.first_phase and state.first_generation > 1
    return 0 if run <= 1 and not was_run_before else None


def told_later(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """After the quarantine was told what it had missed; what it missed again stays deferred."""
    reasons = {i.node: i.reason for i in plan.isolate if i.node in outcome.isolated}
    return replace(
        _isolated(state, reasons),
        isolated={**state.isolated, **reasons},
        avoid=tuple(node for node in state.avoid if node not in reasons),
        deferred=outcome.deferred,
        plan=None,
    )


def _isolated(state: JobState, reasons: Mapping[str, str]) -> JobState:
    """The state once it is said which nodes were isolated; how they are kept is the caller's matter."""
    new = ((node, why) for node, why in reasons.items() if node not in state.isolated)
    return happened(state, *(NodeIsolated(at=state.now, node=n, reason=why) for n, why in new))


def lost(state: JobState, plan: Plan) -> JobState:
    """After a Recovery that told nothing: terminated, reset or timed out. The books keep its bill."""
    told = RestartEnded(at=state.now, n=plan.n, result="terminated", isolated=False)
    return happened(replace(state, plan=None), told)


def found_done(state: JobState, plan: Plan, before: Mapping[int, Slot]) -> JobState:
    """The world shows that a Recovery without an outcome had done its work; the slots are adopted."""
    old, new = _changed_nodes(before, state.slots)
    told = RestartEnded(
        at=state.now,
        n=plan.n,
        result="success",
        generation=state.generation,
        before=old,
        after=new,
    )
    isolated = tuple(isolation.node for isolation in plan.isolate)
    return replace(
        happened(state, told),
        # What the quarantine answered is lost: it is asked again, which changes nothing there.
        deferred=plan.isolate,
        avoid=tuple(dict.fromkeys((*state.avoid, *isolated))),
        incident=None,
    )


def ending(state: JobState, how: str, why: str, *, mode: Mode = Mode.CLOSING) -> JobState:
    """The state of a job that is to end: how and why."""
    state = replace(state, mode=mode, ending=how, ending_reason=why)
    return happened(state, JobEnding(at=state.now, ending=how, reason=why, step=state.step))


def _changed_nodes(
    before: Mapping[int, Slot], after: Mapping[int, Slot]
) -> tuple[dict[int, str], dict[int, str]]:
    """Where the slots that moved were, and where they are."""
    old = {n: slot.node for n, slot in before.items()}
    changed = [n for n, slot in sorted(after.items()) if old.get(n, "") != slot.node]
    return {n: old[n] for n in changed if n in old}, {n: after[n].node for n in changed}


def _given_back(state: JobState) -> JobState:
    """Budgets that count successes get their unit back after a failure, whichever try it was billed to."""
    used, kept = state.ledger.used, dict(state.ledger.bills)
    for n, bill in state.ledger.bills.items():
        back = budgets.refunds(state.phase.policy.budgets, bill, succeeded=False)
        used = budgets.refund(used, back)
        kept[n] = {name: units for name, units in bill.items() if name not in back}
        if back:
            state = happened(state, BillReturned(at=state.now, n=n, budgets=tuple(back)))
    return with_ledger(state, used=used, bills=kept)


def _one_more_failure(state: JobState) -> JobState:
    incident = state.incident
    if incident is None:
        return state
    return replace(state, incident=replace(incident, failures=incident.failures + 1))


def _moved(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The slots after a plan, and everything that counts from a new generation on."""
    slots = {**dict.fromkeys(plan.slots, NEW_SLOT), **state.slots}
    living, recreate = frozenset(outcome.living), frozenset(plan.recreate)
    for n, slot in tuple(slots.items()):
        if n in plan.slots and n in living:
            slots[n] = _moved_slot(n, slot, plan, outcome, is_recreated=n in recreate)
        elif plan.places:
            slots[n] = slot._replace(state=PodState.ABSENT, uid="", node="")
    size = sum(slot.state is not PodState.ABSENT for slot in slots.values())
    resized = size != len(state.living)
    isolated = {i.node: i.reason for i in plan.isolate if i.node in outcome.isolated}
    runs = outcome.result == "success" and plan.level is not Level.NOTE
    return replace(
        _isolated(replace(state, now=max(state.now, outcome.now)), isolated),
        now=max(state.now, outcome.now),
        cursor=outcome.cursor,
        generation=outcome.generation,
        first_generation=state.first_generation or outcome.generation,
        slots=slots,
        resume=outcome.resume if got_past(plan, outcome, Step.RESUME) else state.resume,
        ledger=replace(state.ledger, mark=starting_mark(outcome.resume, state.ledger.mark)),
        saved=outcome.resume or state.saved,
        isolated={**_still_isolated(state, outcome), **isolated},
        deferred=outcome.deferred if got_past(plan, outcome, Step.ISOLATE) else state.deferred,
        avoid=tuple(dict.fromkeys((*state.avoid, *_own_avoid(outcome)))),
        avoid_devices=outcome.avoid_devices,
        learned=Learned() if resized else state.learned,
        running_since=outcome.now if runs else None,
        alive_until=None,
        first_step_at=None,
        unreachable=(),
        waiting_for=None,
        suspected=None,
        gone=tuple(n for n in state.gone if n not in recreate),
        plan=None,
    )


_UP = frozenset({PodState.PENDING, PodState.STARTING, PodState.RUNNING, PodState.UNREACHABLE})


def cleared(state: JobState) -> JobState:
    """Once nothing of the job runs any more: whoever was last seen alive was stopped since."""
    slots = {
        n: slot._replace(state=PodState.STOPPED) if slot.state in _UP else slot
        for n, slot in state.slots.items()
    }
    return replace(state, slots=slots)


def got_past(plan: Plan, outcome: Outcome, step: Step) -> bool:
    """Whether the plan had this step and carried it out to its end."""
    if step not in plan.steps:
        return False
    at = len(plan.steps) if outcome.step is None else plan.steps.index(outcome.step)
    return at > plan.steps.index(step)


def _still_isolated(state: JobState, outcome: Outcome) -> dict[str, str]:
    """A node that the cluster gave us again was released: it may break, and be isolated, once more."""
    known = {slot.uid for slot in state.slots.values()}
    given = {pod.node for pod in outcome.pods.values() if pod.uid not in known}
    return {node: why for node, why in state.isolated.items() if node not in given}


def _own_avoid(outcome: Outcome) -> tuple[str, ...]:
    """What this job avoids from now on, beside the nodes it isolated."""
    return tuple(node for node in outcome.avoid if node not in outcome.isolated)


def _moved_slot(n: int, slot: Slot, plan: Plan, outcome: Outcome, *, is_recreated: bool) -> Slot:
    counts, pod = plan.slots[n], outcome.pods.get(n)
    node, uid, _, schedule, process_start = slot
    if pod is None and is_recreated and outcome.step is Step.PLACE:
        uid = ""  # the old pod was told to go, the new one never came
    elif pod is not None:
        node, uid = pod.node, pod.uid
    if pod is not None and uid != slot.uid:
        schedule, process_start = counts.schedule, 0
    if outcome.was_started:
        schedule, process_start = counts.schedule, counts.process_start
    started = outcome.result == "success" and plan.level is not Level.NOTE
    state = PodState.RUNNING if started else PodState.STOPPED
    return Slot(node, uid, state, schedule, process_start)
