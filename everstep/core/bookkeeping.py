"""What a decision and an outcome do to the books: bills, series, records, slots, isolations.

Mechanical: every number comes from the decision or the outcome; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from everstep.core import budgets, journal, run_ends
from everstep.core.bounds import cut
from everstep.core.decision import Decision, Outcome, Plan, Result
from everstep.core.facts import EXAMPLES_KEPT, Fact
from everstep.core.levels import RESCHEDULING, FaultClass, Level, Step
from everstep.core.plans import NEW_SLOT
from everstep.core.progress import found_further, progressed, starting_mark
from everstep.core.starts import worker_of
from everstep.core.state import (
    FACTS_KNOWN,
    OCCURRENCES_KEPT,
    Incident,
    JobState,
    Learned,
    Record,
    Slot,
    Suspected,
    add_record,
    find_record,
    remember_ids,
    update_record,
    with_ledger,
)
from everstep.core.watching import WatchReport
from everstep.core.world import PodState

# -- What was seen ------------------------------------------------------------------------------


def seen(state: JobState, report: WatchReport) -> JobState:
    """The state after a watcher's report: time, steps, checkpoints, pods, progress."""
    living = frozenset(state.living)
    state = replace(
        journal.written(state, report.journaled),
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
        library=report.library,
        gone=tuple(slot for slot in report.gone if slot in living),
    )
    return progressed(_first_step(state, report))


def _slots_seen(state: JobState, report: WatchReport) -> dict[int, Slot]:
    slots = dict(state.slots)
    for pod in report.pods:
        old = slots.get(pod.slot)
        if old is not None and old.uid == pod.uid:
            slots[pod.slot] = old._replace(state=PodState(pod.state))
    return slots


def _first_step(state: JobState, report: WatchReport) -> JobState:
    """Fills the last stage of the newest restart once its first step was seen."""
    if report.first_step_at is None or state.first_step_at is not None:
        return state
    state = replace(state, first_step_at=report.first_step_at)
    started_at = state.running_since
    took = max(report.first_step_at - started_at, 0.0) if started_at is not None else 0.0
    learned = replace(state.learned, longest_start_s=max(state.learned.longest_start_s, took))
    state = replace(state, learned=learned)
    records = state.ledger.records
    if not records or records[-1].generation_to != state.generation:
        return state
    ended_at = records[-1].ended_at or report.first_step_at
    stages = {**records[-1].stages_s, "first_step": round(report.first_step_at - ended_at, 6)}
    return replace(
        state,
        ledger=update_record(state.ledger, records[-1].n, stages_s=stages),
        stages_s=_added(state.stages_s, {"first_step": stages["first_step"]}),
    )


def _added(totals: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {**totals, **{k: round(totals.get(k, 0.0) + v, 6) for k, v in more.items()}}


def told(state: JobState, facts: tuple[Fact, ...]) -> JobState:
    """The state with these facts known, so that none is ever news again."""
    ids = tuple(fact.id for fact in facts)
    return replace(state, seen_ids=remember_ids(state.seen_ids, ids, kept=FACTS_KNOWN))


# -- What was decided ---------------------------------------------------------------------------


def noted(state: JobState, decision: Decision) -> JobState:
    """After a decision that leaves the world alone."""
    state = _occurred(state, decision)
    if decision.fault.cls is FaultClass.UNREACHABLE:
        return replace(state, unreachable=decision.fault.slots, waiting_for=decision.waiting_for)
    if decision.fault.cls is FaultClass.HANG and decision.level is Level.NOTE:
        text = f"suspected suspension: {decision.fault.message or decision.reason}"
        return replace(state, suspected=Suspected(at=decision.at, text=text))
    return state


def refused(state: JobState, decision: Decision) -> JobState:
    """A record for every level that a budget stopped; nothing is billed."""
    for refusal in decision.refused:
        state = _with_incident(state, decision)
        assert state.incident is not None
        record = Record(
            n=state.ledger.recoveries + 1,
            incident=state.incident.n,
            phase=state.phase.name,
            decision=replace(_told_of(decision), level=refusal.level, bills={}),
            generation_from=state.generation,
            result="quotaExceeded",
            refused_by=refusal.budget,
            ended_at=decision.at,
            worker=_worker(state, decision),
        )
        state = replace(state, ledger=add_record(state.ledger, record))
    return state


def reserved(state: JobState, decision: Decision) -> JobState:
    """The books before the Recovery starts: billed, counted, recorded. A kill from here on is safe."""
    before = state
    state = _with_incident(_occurred(state, decision), decision)
    ledger, cls = state.ledger, decision.fault.cls
    escalation = dict(ledger.escalation)
    is_first_try = decision.repeats is None  # else it was counted before its outcome was lost
    if decision.counts_spacing:
        escalation[cls] = escalation.get(cls, 0) + 1
    state = with_ledger(
        state,
        used=budgets.charge(ledger.used, decision.bills),
        series=_series(before, decision),
        escalation=escalation,
        no_progress=ledger.no_progress + decision.counts_no_progress,
        spacing=ledger.spacing + decision.counts_spacing,
        restarts=ledger.restarts + is_first_try,
        reschedules=ledger.reschedules + (is_first_try and decision.level in RESCHEDULING),
    )
    assert state.incident is not None
    record = Record(
        n=state.ledger.recoveries + 1,
        incident=state.incident.n,
        phase=state.phase.name,
        decision=_told_of(decision),
        generation_from=state.generation,
        bills=dict(decision.bills),
        isolated=bool(decision.isolate),  # what it is about to do; the outcome says what was done
        stages_s=_decided_stages(decision),
        worker=_worker(state, decision),
    )
    return replace(state, ledger=add_record(state.ledger, record))


def _series(state: JobState, decision: Decision) -> dict[str, int]:
    """The series after this restart: one of another kind comes between those of a series and ends it.

    The next level for the same fault, and the same level once more, come between nothing.
    """
    known, incident = state.ledger.series, state.incident
    is_same = incident is not None and incident.decision.fault.cls is decision.fault.cls
    kept = known if is_same else {name: known[name] for name in decision.counts if name in known}
    return {**kept, **{name: known.get(name, 0) + 1 for name in decision.counts}}


def _worker(state: JobState, decision: Decision) -> int | None:
    """Whose fault it is. Later levels of an incident have it from the first, whoever moved since."""
    earlier = state.ledger.records[-1:]
    if not decision.new_incident and earlier and earlier[0].worker is not None:
        return earlier[0].worker
    return worker_of(state, decision.fault)


SEEN_LINES, SEEN_CHARACTERS = 4, 110
"""Of what was seen; the rest is in the Recovery, and in the history of the decision."""


def _told_of(decision: Decision) -> Decision:
    """What a record keeps of a decision: why, not how. The whole one is in the plan of its Recovery."""
    return replace(
        decision,
        ladder=(),
        steps=(),
        isolate=(),
        avoid=(),
        recreate=(),
        heal=(),
        beside=(),
        later=(),
        gives_way_to=(),
        occurrences=(),
        run_end=None,
        seen=tuple(cut(line, SEEN_CHARACTERS) for line in decision.seen[:SEEN_LINES]),
        fault=replace(
            decision.fault, nodes=decision.fault.nodes[:EXAMPLES_KEPT], slots=(), message=""
        ),
    )


def _decided_stages(decision: Decision) -> dict[str, float]:
    if not decision.new_incident:
        return {}
    return {"detect": round(max(decision.at - decision.fault.at, 0.0), 6), "decide": 0.0}


def _occurred(state: JobState, decision: Decision) -> JobState:
    known = (*state.occurrences, *decision.occurrences)
    state = replace(state, occurrences=known[-OCCURRENCES_KEPT:])
    return run_ends.counted(state, decision)


def _with_incident(state: JobState, decision: Decision) -> JobState:
    incident = state.incident
    if incident is None:
        number = state.ledger.incidents + 1
        state = with_ledger(state, incidents=number)
        incident = Incident(n=number, started_at=decision.fault.at, decision=decision)
    return replace(state, incident=replace(incident, decision=decision))


# -- What came of it ----------------------------------------------------------------------------


def launched(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """After a launch: the slots it made, and where the training resumes from."""
    return _moved(state, plan, outcome)


RECORD_RESULT: Mapping[Result, str] = {
    "success": "success",
    "failed": "downgrade",
    "superseded": "terminated",
}


def recovered(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """After a Recovery that told its outcome, whatever it was."""
    succeeded = outcome.result == "success"
    before, mark = state.slots, state.ledger.mark
    state = found_further(_moved(state, plan, outcome), mark)
    if outcome.result == "failed":
        state = _one_more_failure(_given_back(state, plan.n))
    state = _record_outcome(state, plan, outcome, before)
    return replace(state, incident=None) if succeeded else state


def _record_outcome(
    state: JobState, plan: Plan, outcome: Outcome, before: Mapping[int, Slot]
) -> JobState:
    record = find_record(state.ledger, plan.n)
    stages = {**(record.stages_s if record else {}), **outcome.stages_s}
    old, new = _changed_nodes(before, state.slots)
    started = outcome.generation if outcome.was_started else None
    ledger = update_record(
        state.ledger,
        plan.n,
        result=RECORD_RESULT[outcome.result],
        ended_at=outcome.now,
        generation_to=started,
        isolated=bool(outcome.isolated),
        before=old,
        after=new,
        resume_step=None if started is None else journal.starting_step(state, run=state.runs + 1),
        evidence=outcome.evidence,
        stages_s=stages,
        notes=outcome.notes,
        waited=outcome.waited,
    )
    return replace(state, ledger=ledger, stages_s=_added(state.stages_s, stages))


def given_up(state: JobState, decision: Decision) -> JobState:
    """After a decision to fail: the level that failed last was the last there was, and this is why."""
    executed = [r for r in state.ledger.records if r.refused_by is None]
    if decision.new_incident or not executed or executed[-1].result != RECORD_RESULT["failed"]:
        return state
    ledger = update_record(
        state.ledger, executed[-1].n, result="failed", end_reason=decision.reason
    )
    return replace(state, ledger=ledger)


def told_later(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """After the quarantine was told what it had missed; what it missed again stays deferred."""
    reasons = {i.node: i.reason for i in plan.isolate if i.node in outcome.isolated}
    return replace(
        state,
        isolated={**state.isolated, **reasons},
        avoid=tuple(node for node in state.avoid if node not in reasons),
        deferred=outcome.deferred,
        plan=None,
    )


def lost(state: JobState, plan: Plan) -> JobState:
    """After a Recovery that told nothing: terminated, reset or timed out. The books keep its bill."""
    ledger = update_record(
        state.ledger, plan.n, result="terminated", ended_at=state.now, isolated=False
    )
    return replace(state, ledger=ledger, plan=None)


def found_done(state: JobState, plan: Plan, before: Mapping[int, Slot]) -> JobState:
    """The world shows that a Recovery without an outcome had done its work; the slots are adopted."""
    old, new = _changed_nodes(before, state.slots)
    ledger = update_record(
        state.ledger,
        plan.n,
        result="success",
        ended_at=state.now,
        generation_to=state.generation,
        before=old,
        after=new,
    )
    isolated = tuple(isolation.node for isolation in plan.isolate)
    return replace(
        state,
        ledger=ledger,
        # What the quarantine answered is lost: it is asked again, which changes nothing there.
        deferred=plan.isolate,
        avoid=tuple(dict.fromkeys((*state.avoid, *isolated))),
        incident=None,
    )


def _changed_nodes(
    before: Mapping[int, Slot], after: Mapping[int, Slot]
) -> tuple[dict[int, str], dict[int, str]]:
    """Where the slots that moved were, and where they are."""
    old = {n: slot.node for n, slot in before.items()}
    changed = [n for n, slot in sorted(after.items()) if old.get(n, "") != slot.node]
    return {n: old[n] for n in changed if n in old}, {n: after[n].node for n in changed}


def _given_back(state: JobState, n: int) -> JobState:
    """Budgets that count successes get their unit back after a failure, whichever try it was billed to."""
    record = find_record(state.ledger, n)
    if record is None:
        return state
    back = budgets.refunds(state.phase.policy.budgets, record.bills, succeeded=False)
    kept = {name: units for name, units in record.bills.items() if name not in back}
    ledger = update_record(state.ledger, n, bills=kept)
    used = budgets.refund(ledger.used, back)
    state = replace(state, ledger=replace(ledger, used=used))
    tried_before = record.decision.repeats
    return state if tried_before is None else _given_back(state, tried_before)


def _one_more_failure(state: JobState) -> JobState:
    incident = state.incident
    if incident is None:
        return state
    return replace(state, incident=replace(incident, failures=incident.failures + 1))


def _moved(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The slots after a plan, and everything that counts from a new generation on."""
    slots = {**dict.fromkeys(plan.slots, NEW_SLOT), **state.slots}
    for n, slot in tuple(slots.items()):
        slots[n] = _moved_slot(n, slot, plan, outcome)
    living = sum(slot.state is not PodState.ABSENT for slot in slots.values())
    resized = living != len(state.living)
    isolated = {i.node: i.reason for i in plan.isolate if i.node in outcome.isolated}
    runs = outcome.result == "success" and plan.level is not Level.NOTE
    return replace(
        state,
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
        gone=tuple(n for n in state.gone if n not in plan.recreate),
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


def _moved_slot(n: int, slot: Slot, plan: Plan, outcome: Outcome) -> Slot:
    counts = plan.slots.get(n)
    if counts is None or n not in outcome.living:
        return slot._replace(state=PodState.ABSENT, uid="", node="") if plan.places else slot
    pod = outcome.pods.get(n)
    if pod is None and n in plan.recreate and outcome.step is Step.PLACE:
        slot = slot._replace(uid="")  # the old pod was told to go, the new one never came
    is_new = pod is not None and pod.uid != slot.uid
    if pod is not None:
        slot = slot._replace(node=pod.node, uid=pod.uid)
    if is_new:
        slot = slot._replace(schedule_count=counts.schedule, process_start_count=0)
    if outcome.was_started:
        slot = slot._replace(
            process_start_count=counts.process_start, schedule_count=counts.schedule
        )
    started = outcome.result == "success" and plan.level is not Level.NOTE
    return slot._replace(state=PodState.RUNNING if started else PodState.STOPPED)
