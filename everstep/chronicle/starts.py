"""What became of each start of all processes: when it began, when and why it ended."""

from __future__ import annotations

from dataclasses import replace

from everstep.chronicle import records
from everstep.chronicle.chronicle import STARTS_KEPT, Chronicle, PhaseSpan, Start
from everstep.core.facts import EXAMPLES_KEPT, Fact
from everstep.core.levels import RESCHEDULING
from everstep.core.loop.job_events import (
    FirstStepSeen,
    JobEnding,
    JobEvent,
    Paused,
    PhaseBegan,
    PhaseEnded,
    ProcessesEnded,
    RestartDecided,
    Started,
)

WHY_KEPT = 120
KILLED = 128
"""A shell's exit code for a process that a signal ended begins here."""

MOVED = "a newer start was found in its place"


def noted(known: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with what the event says of starts."""
    match event:
        case Started():
            return _begun(known, event)
        case FirstStepSeen(at=at, generation=generation):
            return _first_step(known, at, generation)
        case RestartDecided(decision=decision, worker=worker, step=step):
            return _ended(known, decision.at, worker=worker, step=step)
        case PhaseBegan(at=at, phase=phase):
            return replace(known, phases={**known.phases, phase: PhaseSpan(at)})
        case PhaseEnded(at=at, reason=reason, worker=worker, step=step):
            return _ended(_phase_ended(known, at), at, reason, worker, step=step)
        case Paused(at=at, reason=reason, step=step):
            return _ended(known, at, f"paused: {reason}" if reason else "paused", step=step)
        case JobEnding(at=at, reason=reason, step=step):
            why = f"stopped: {reason}" if reason else "stopped"
            return _ended(_phase_ended(known, at), at, why, step=step)
        case ProcessesEnded(ends=ends):
            return _with_exits(known, ends)
        case _:
            return known


def _begun(known: Chronicle, event: Started) -> Chronicle:
    known = _ended(known, event.at, MOVED)  # if it still ran: the world moved behind our back
    last = records.executed(known)
    start = Start(
        phase=known.phase.name if known.phase is not None else "",
        generation=event.generation,
        at=event.at,
        nodes=len(event.slots),
        # The newest restart left all containers alone. The first start of a phase made them.
        is_same_place=event.run > 1
        and last is not None
        and last.decision.level not in RESCHEDULING,
        starting_step=event.starting_step,
    )
    return replace(
        known,
        starts=(*known.starts, start)[-STARTS_KEPT:],
        started_at=event.at if known.started_at is None else known.started_at,
        exits={},
    )


def _first_step(known: Chronicle, at: float, generation: int) -> Chronicle:
    if not known.starts or known.starts[-1].generation != generation:
        return known
    return _newest(known, known.starts[-1]._replace(first_step_at=at))


def _ended(
    known: Chronicle,
    at: float,
    why: str = "",
    worker: int | None = None,
    *,
    step: int | None = None,
) -> Chronicle:
    if not known.starts or known.starts[-1].ended_at is not None:
        return known
    end = known.starts[-1]._replace(ended_at=at, why=why[:WHY_KEPT], worker=worker, step=step)
    return _newest(known, end)


def _phase_ended(known: Chronicle, at: float) -> Chronicle:
    """The chronicle with the end of the phase under way."""
    name = known.phase.name if known.phase is not None else ""
    span = known.phases.get(name)
    if span is None or span.ended_at is not None:
        return known
    return replace(known, phases={**known.phases, name: span._replace(ended_at=at)})


def _newest(known: Chronicle, start: Start) -> Chronicle:
    return replace(known, starts=(*known.starts[:-1], start))


def exit_code(fact: Fact) -> int | None:
    """As a container would end: a signal counts from 128 on."""
    code, signal = fact.details.get("exit_code"), fact.details.get("signal")
    if isinstance(code, int):
        return code
    return KILLED + signal if isinstance(signal, int) else None


def _with_exits(known: Chronicle, ends: tuple[Fact, ...]) -> Chronicle:
    exits = dict(known.exits)
    for fact in ends:
        code = exit_code(fact)
        if code is not None and fact.slot is not None and len(exits) < EXAMPLES_KEPT:
            exits.setdefault(fact.slot, code)
    return replace(known, exits=exits)
