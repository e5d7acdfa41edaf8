"""Apply reports and decisions to the job's state and ledger: progress, bills, series, incidents.

Mechanical: every number comes from the report or the decision; nothing is judged here. Each change that
people should see becomes a job event here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from everstep.core.counting.lasting import with_facts
from everstep.core.deciding import budgets, remedies, run_ends
from everstep.core.deciding.answering import wait_for_nodes
from everstep.core.deciding.decision import Decision, Fault
from everstep.core.facts import PREFETCH_DONE, PREFETCH_FAILED, Fact
from everstep.core.levels import FaultClass, Level
from everstep.core.loop.job_events import (
    FaultNoted,
    FirstStepSeen,
    LevelRefused,
    ProcessesEnded,
    RestartDecided,
    StepsFound,
    WarningBegan,
    WarningOver,
)
from everstep.core.recovering.avoiding import without_over
from everstep.core.seeing.progress import progressed
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.state import (
    FACT_IDS_KEPT,
    OCCURRENCES_KEPT,
    Incident,
    JobState,
    Slot,
    Suspected,
    Wait,
    happened,
    remember_ids,
    with_ledger,
)
from everstep.core.waits import WaitReason
from everstep.core.world import PodState

LAST_CHOICE_MOST = SUSPECTED_NODES_MOST = 20
"""The nodes, the newest, that are taken only where no other has room."""

# -- Reports -------------------------------------------------------------------------------------


def apply_report(state: JobState, report: WatchReport) -> JobState:
    """Take in a report of the monitor: time, steps, checkpoints, pods, progress."""
    active = frozenset(state.active)
    warnings, steps_from = state.warnings, report.learned.steps_from
    is_new_source = bool(steps_from) and steps_from != state.learned.steps_from
    state = replace(
        state,
        now=max(state.now, report.now),
        cursor=report.cursor,
        step=report.step if report.step is not None else state.step,
        stepped_in=state.generation if report.step is not None else state.stepped_in,
        saved=report.checkpoint or state.saved,
        remembered=report.remembered,
        running_since=report.running_since or state.running_since,
        alive_until=report.alive_until or state.alive_until,
        learned=report.learned,
        warnings=report.warnings,
        slots=_slots_seen(state, report),
        can=report.can,
        older_ranks=_older_ranks(state, report),
        lost_containers=tuple(slot for slot in report.lost_containers if slot in active),
        avoided=without_over(state.avoided, report.maintenance_over),
    )
    state = progressed(_first_step(apply_facts(state, report.facts), report))
    return happened(
        state,
        *([StepsFound(at=state.now, taken_from=steps_from)] if is_new_source else ()),
        *(WarningBegan(at=w.at, text=w.text) for w in report.warnings if w not in warnings),
        *(WarningOver(at=state.now, text=w.text) for w in warnings if w not in report.warnings),
    )


def _older_ranks(state: JobState, report: WatchReport) -> dict[int, int]:
    """Ranks of earlier generations. One that the report lacks keeps its entry until the next generation."""
    before = state.older_ranks if report.generation == state.generation else {}
    return {**before, **report.older_ranks}


def apply_facts(state: JobState, facts: Iterable[Fact]) -> JobState:
    """Take in the ends of processes, and the results of prefetches that ran beside the training."""
    news = tuple(facts)
    state = _with_sizes(state, news)
    ends = tuple(fact for fact in news if fact.kind == "process.exit")
    return happened(state, ProcessesEnded(at=state.now, ends=ends)) if ends else state


def _with_sizes(state: JobState, facts: tuple[Fact, ...]) -> JobState:
    """Record the numbers of nodes that prefetches found to work or not to work.

    The result of an older generation counts too, unless that ran another program, as another phase does.
    """
    verdicts = [
        (f.kind, f.details.get("nodes"))
        for f in facts
        if f.details.get("phase") == state.phase.name and f.generation >= state.ledger.sizes_since
    ]
    failed = {n for kind, n in verdicts if kind == PREFETCH_FAILED and isinstance(n, int)}
    done = {n for kind, n in verdicts if kind == PREFETCH_DONE and isinstance(n, int)}
    if not failed and not done:
        return state
    return with_ledger(
        state,
        bad_sizes=tuple(sorted({*state.ledger.bad_sizes, *failed})),
        prefetched=tuple(sorted({*state.ledger.prefetched, *done})),
    )


def _slots_seen(state: JobState, report: WatchReport) -> dict[int, Slot]:
    """The slots with the states that changed, and as lost those that ran and have no pod any more."""
    slots, in_report = dict(state.slots), {pod.slot for pod in report.pods}
    for slot in report.lost_containers:
        # The report leaves out a pod only if it is there as before, or not there at all.
        if slot not in in_report and slots[slot].state is PodState.RUNNING:
            slots[slot] = slots[slot]._replace(state=PodState.LOST)
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
    event = FirstStepSeen(at=report.first_step_at, generation=state.generation)
    return happened(replace(state, learned=learned), event)


def mark_answered(state: JobState, facts: tuple[Fact, ...]) -> JobState:
    """Remember that these facts were decided on, so that none is decided on twice."""
    ids = tuple(fact.id for fact in facts)
    return replace(
        state,
        seen_ids=remember_ids(state.seen_ids, ids, most=FACT_IDS_KEPT),
        lasting=with_facts(state.lasting, facts, state.phase.policy.job_durations),
    )


# -- Decisions -----------------------------------------------------------------------------------


def apply_note(state: JobState, decision: Decision) -> JobState:
    """Take in a decision that changes no process."""
    state = _occurred(state, decision)
    if decision.level is Level.NOTE:
        event = FaultNoted(at=state.now, decision=decision, generation=state.generation)
        state = happened(state, event)
    if decision.fault.cls is FaultClass.UNREACHABLE:
        return _with_unreachable(state, decision)
    if decision.fault.cls is FaultClass.HANG and decision.level is Level.NOTE:
        text = f"suspected suspension: {decision.fault.message or decision.reason}"
        return replace(state, suspected=Suspected(at=decision.at, text=text))
    return state


def _with_unreachable(state: JobState, decision: Decision) -> JobState:
    """The state with the slots of this decision unreachable, beside those that still are."""
    still = [n for n in state.unreachable if state.slots[n].state is PodState.UNREACHABLE]
    unreachable = tuple(sorted({*still, *decision.fault.slots}))
    if (what := decision.waiting_for) is None:
        return replace(state, unreachable=unreachable, waiting=None)
    waiting = Wait(what=what, since=decision.at, reason=WaitReason.AGENT_SILENT)
    if still:
        cause = wait_for_nodes(dict.fromkeys(state.slots[n].node for n in unreachable))
        since = decision.at if state.waiting is None else state.waiting.since
        waiting = Wait.of(cause, since=since)
    return replace(state, unreachable=unreachable, waiting=waiting)


def apply_refusals(state: JobState, decision: Decision) -> JobState:
    """Number and record each level that a budget refused; nothing is billed."""
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


def _by_node(before: Mapping[str, int], decision: Decision) -> dict[str, int]:
    """The restarts on each suspected node, those of the newest nodes last."""
    node = remedies.suspected_node(decision.fault)
    if node is None or not decision.counts_spacing:
        return dict(before)
    older = {name: times for name, times in before.items() if name != node}
    by_node = {**older, node: before.get(node, 0) + 1}
    return dict(tuple(by_node.items())[-SUSPECTED_NODES_MOST:])


def apply_restart(state: JobState, decision: Decision, *, before: Incident | None) -> JobState:
    """Bill, count and record a restart before its Recovery starts. A kill from here on is safe.

    `before`: the incident that was open before this decision. Its refusals may have opened one.
    """
    is_same_fault = before is not None and before.decision.fault.cls is decision.fault.cls
    series = _series(state.ledger.series, decision, is_same_fault=is_same_fault)
    state, incident = _with_incident(_occurred(state, decision), decision)
    ledger, cls = state.ledger, decision.fault.cls
    escalation = dict(ledger.escalation)
    is_repeat = decision.repeats is not None  # its restart was counted and billed before
    placed_before = is_repeat and before is not None and before.decision.remedy.places_pods
    n = ledger.recoveries + 1
    left = dict.fromkeys((*state.last_choice, *decision.remedy.last_choice))
    state = replace(state, last_choice=tuple(left)[-LAST_CHOICE_MOST:])
    if decision.counts_spacing:
        escalation[cls] = escalation.get(cls, 0) + 1
    state = with_ledger(
        state,
        used=budgets.charge(ledger.used, decision.bills),
        bills={**(ledger.bills if is_repeat else {}), n: dict(decision.bills)},
        series=series,
        escalation=escalation,
        by_node=_by_node(ledger.by_node, decision),
        no_progress=ledger.no_progress + decision.counts_no_progress,
        spacing=ledger.spacing + decision.counts_spacing,
        checking=ledger.checking if decision.checking is None else decision.checking,
        rollbacks=ledger.rollbacks._replace(
            times=ledger.rollbacks.times + decision.counts_as_rollback
        ),
        recoveries=n,
        restarts=ledger.restarts + (not is_repeat),
        reschedules=ledger.reschedules + (decision.remedy.places_pods and not placed_before),
        bad_sizes=_bad_sizes(ledger.bad_sizes, decision),
    )
    decided = RestartDecided(
        at=state.now,
        n=n,
        incident=incident.n,
        decision=decision,
        generation=state.generation,
        worker=incident.worker,
        step=state.generation_step,
        was_running=state.running_since is not None,
        saved=state.saved,
    )
    return happened(state, decided)


def _bad_sizes(before: tuple[int, ...], decision: Decision) -> tuple[int, ...]:
    new = () if decision.bad_size is None else (decision.bad_size,)
    return tuple(sorted({*before, *new}))


def _series(
    series: Mapping[str, int], decision: Decision, *, is_same_fault: bool
) -> dict[str, int]:
    """The series after this restart, which ends every series that it does not count in.

    The next level for the same fault, and the same level once more, end none.
    """
    other_series = series if is_same_fault else {}
    return {**other_series, **{name: series.get(name, 0) + 1 for name in decision.counts}}


def worker_of(state: JobState, fault: Fault) -> int | None:
    """The slot that a fault is in, or the lowest one on its node."""
    if fault.slot is not None:
        return fault.slot
    there = (n for n in state.active if fault.node and state.slots[n].node == fault.node)
    return next(there, None)


def _occurred(state: JobState, decision: Decision) -> JobState:
    occurrences = (*state.occurrences, *decision.occurrences)[-OCCURRENCES_KEPT:]
    state = replace(state, occurrences=occurrences)
    return run_ends.counted(state, decision)


def _with_incident(state: JobState, decision: Decision) -> tuple[JobState, Incident]:
    """The open incident, or a new one, with its newest decision. Its first decision names the worker."""
    incident = state.incident
    if incident is None:
        number = state.ledger.incidents + 1
        state = with_ledger(state, incidents=number)
        incident = Incident(n=number, started_at=decision.fault.at, decision=decision)
    worker = worker_of(state, decision.fault) if incident.worker is None else incident.worker
    incident = replace(incident, decision=decision, worker=worker)
    return replace(state, incident=incident), incident
