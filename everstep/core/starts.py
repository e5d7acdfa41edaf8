"""What became of each start of all processes: when it began, when and why it ended.

Read off the states before and after a step of the loop, like the journal; no rule depends on it.
"""

from __future__ import annotations

from dataclasses import replace

from everstep.core.decision import Fault
from everstep.core.facts import EXAMPLES_KEPT, Fact
from everstep.core.journal import start_of
from everstep.core.levels import RESCHEDULING
from everstep.core.moves import Decided, Event, PlanEnded, Watched
from everstep.core.state import STARTS_KEPT, JobState, Mode, Record, Start

WHY_KEPT = 120
KILLED = 128
"""A shell's exit code for a process that a signal ended begins here."""

MOVED = "a newer start was found in its place"


def followed(before: JobState, event: Event, after: JobState) -> JobState:
    """The state after a step of the loop, with its starts brought up to date."""
    after = _first_step(_ended(before, event, after))
    began = start_of(before, event, after)
    if began is not None:
        after = _begun(after, began)
    return _with_exits(_closed(after), event)


def _closed(state: JobState) -> JobState:
    """What was found running while the job was ending already ends with it."""
    if state.mode is not Mode.CLOSING or not state.starts or state.starts[-1].ended_at is not None:
        return state
    why = f"stopped: {state.ending_reason}" if state.ending_reason else "stopped"
    last = state.starts[-1]._replace(ended_at=state.now, why=why[:WHY_KEPT])
    return replace(state, starts=(*state.starts[:-1], last))


def _begun(state: JobState, began: float) -> JobState:
    known = state.starts
    if known and known[-1].ended_at is None:  # the world moved behind our back
        known = (*known[:-1], known[-1]._replace(ended_at=began, why=MOVED))
    start = Start(
        phase=state.phase.name,
        generation=state.generation,
        at=began,
        nodes=len(state.living),
        is_same_place=_is_same_place(state),
    )
    return replace(
        state,
        starts=(*known, start)[-STARTS_KEPT:],
        started_at=began if state.started_at is None else state.started_at,
        exits={},
    )


def _is_same_place(state: JobState) -> bool:
    """Whether the newest restart left all containers alone. The first start of a phase made them."""
    done: tuple[Record, ...] = tuple(r for r in state.ledger.records if r.refused_by is None)
    if state.runs <= 1 or not done:
        return False
    return done[-1].decision.level not in RESCHEDULING


def _first_step(state: JobState) -> JobState:
    if not state.starts or state.first_step_at is None:
        return state
    start = state.starts[-1]
    if start.first_step_at is not None or start.generation != state.generation:
        return state
    return replace(
        state, starts=(*state.starts[:-1], start._replace(first_step_at=state.first_step_at))
    )


def _ended(before: JobState, event: Event, after: JobState) -> JobState:
    if not after.starts or after.starts[-1].ended_at is not None:
        return after
    end = _end(before, event, after, after.starts[-1])
    return after if end is None else replace(after, starts=(*after.starts[:-1], end))


def _end(before: JobState, event: Event, after: JobState, start: Start) -> Start | None:
    """The start with its end, if it has come."""
    record = _new_record(before, after)
    if record is not None:
        return start._replace(ended_at=record.decision.at, worker=record.worker)
    if len(after.finished) > len(before.finished):
        is_well = after.finished[-1].state == "completed"
        why = "all ranks ended well" if is_well else after.ending_reason
        worker = worker_of(before, event.decision.fault) if isinstance(event, Decided) else None
        return start._replace(ended_at=after.now, why=why[:WHY_KEPT], worker=worker)
    for mode, why in ((Mode.PAUSING, "paused"), (Mode.CLOSING, "stopped")):
        if before.mode is not mode and after.mode is mode:
            reason = after.paused_reason if mode is Mode.PAUSING else after.ending_reason
            text = f"{why}: {reason}" if reason else why
            return start._replace(ended_at=after.now, why=text[:WHY_KEPT])
    return None


def _new_record(before: JobState, after: JobState) -> Record | None:
    """The record of a restart that has just been decided."""
    if before.phase_index != after.phase_index or after.mode is not Mode.RECOVERING:
        return None
    newest = after.ledger.records[-1:]
    return next((r for r in newest if r.n > before.ledger.recoveries), None)


# -- Who ended, and how ---------------------------------------------------------------------------


def worker_of(state: JobState, fault: Fault) -> int | None:
    """The slot that a fault is in, or the lowest one on its node."""
    if fault.slot is not None:
        return fault.slot
    there = (n for n in state.living if fault.node and state.slots[n].node == fault.node)
    return next(there, None)


def told_facts(event: Event) -> tuple[Fact, ...]:
    """What was seen in this step of the loop."""
    match event:
        case Watched(report=report):
            return report.facts
        case PlanEnded(outcome=outcome) if outcome is not None:
            cause = () if outcome.cause is None else (outcome.cause,)
            return tuple({fact.id: fact for fact in (*cause, *outcome.facts)}.values())
        case _:
            return ()


def exit_code(fact: Fact) -> int | None:
    """As a container would end: a signal counts from 128 on."""
    code, signal = fact.details.get("exit_code"), fact.details.get("signal")
    if isinstance(code, int):
        return code
    return KILLED + signal if isinstance(signal, int) else None


def _with_exits(state: JobState, event: Event) -> JobState:
    exits = dict(state.exits)
    for fact in told_facts(event):
        code = exit_code(fact) if fact.kind == "process.exit" else None
        if code is not None and fact.slot is not None and len(exits) < EXAMPLES_KEPT:
            exits.setdefault(fact.slot, code)
    return state if exits == state.exits else replace(state, exits=exits)
