"""What became of each start of all processes: when it began, when and why it ended."""

from __future__ import annotations

from dataclasses import replace

from everstep.chronicle import journal, records
from everstep.chronicle.chronicle import STARTS_KEPT, Chronicle, PhaseSpan, Start, StartOrigin
from everstep.core.facts import EXAMPLES_KEPT, Fact
from everstep.core.loop.job_events import (
    FirstStepSeen,
    JobEnding,
    JobEvent,
    Paused,
    PhaseBegan,
    PhaseEnded,
    ProcessesEnded,
    RestartDecided,
    RestartEnded,
    Started,
)
from everstep.protocol.exits import Exit

WHY_KEPT = 120
ORIGIN_KEPT = 400

MOVED = "a newer start was found in its place"


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with what the event says of starts."""
    match event:
        case Started():
            return _begun(chronicle, event)
        case FirstStepSeen(at=at, generation=generation):
            return _first_step(chronicle, at, generation)
        case RestartDecided(decision=decision, worker=worker, step=step):
            return _ended(chronicle, decision.at, worker=worker, step=step)
        case RestartEnded() if event.standby_s:
            return _with_standby(chronicle, event)
        case PhaseBegan(at=at, phase=phase):
            return replace(chronicle, phases={**chronicle.phases, phase: PhaseSpan(at)})
        case PhaseEnded(at=at, reason=reason, worker=worker, step=step):
            return _ended(_phase_ended(chronicle, at), at, reason, worker, step=step)
        case Paused(at=at, reason=reason, step=step):
            why = f"paused: {reason}" if reason else "paused"
            return _ended(_with_pause(chronicle, at), at, why, step=step)
        case JobEnding(at=at, reason=reason, step=step):
            why = f"stopped: {reason}" if reason else "stopped"
            return _ended(_phase_ended(chronicle, at), at, why, step=step)
        case ProcessesEnded(ends=ends):
            return _with_exits(chronicle, ends)
        case _:
            return chronicle


def _begun(chronicle: Chronicle, event: Started) -> Chronicle:
    # A run without a reported end was replaced outside of this loop.
    chronicle = _ended(chronicle, event.at, MOVED)
    last = records.executed(chronicle)
    start = Start(
        phase=chronicle.phase.name if chronicle.phase is not None else "",
        generation=event.generation,
        at=event.at,
        nodes=len(event.slots),
        # The newest restart left all containers alone. The first start of a phase made them.
        is_same_place=event.run > 1 and last is not None and not last.places_pods,
        starting_step=event.starting_step,
    )
    origin = StartOrigin(
        step=event.starting_step,
        path=None if event.resume is None else event.resume.path,
        text=journal.origin(event)[:ORIGIN_KEPT],
    )
    return replace(
        chronicle,
        starts=(*chronicle.starts, start)[-STARTS_KEPT:],
        started_at=event.at if chronicle.started_at is None else chronicle.started_at,
        exits={},
        origin=origin,
    )


def _with_standby(chronicle: Chronicle, event: RestartEnded) -> Chronicle:
    """The run went on after the decision, until its standby was ready: move its end, or remove it."""
    last = chronicle.starts[-1] if chronicle.starts else None
    if last is None or last.ended_at is None:
        return chronicle
    if event.stopped_nothing:
        return _newest(chronicle, last._replace(ended_at=None, why="", worker=None, step=None))
    return _newest(chronicle, last._replace(ended_at=last.ended_at + event.standby_s))


def _first_step(chronicle: Chronicle, at: float, generation: int) -> Chronicle:
    if not chronicle.starts or chronicle.starts[-1].generation != generation:
        return chronicle
    # A start is dated when all agents have answered. A rank may have made its first step before.
    newest = chronicle.starts[-1]
    return _newest(chronicle, newest._replace(first_step_at=max(at, newest.at)))


def _ended(
    chronicle: Chronicle,
    at: float,
    why: str = "",
    worker: int | None = None,
    *,
    step: int | None = None,
) -> Chronicle:
    if not chronicle.starts or chronicle.starts[-1].ended_at is not None:
        return chronicle
    end = chronicle.starts[-1]._replace(ended_at=at, why=why[:WHY_KEPT], worker=worker, step=step)
    return _newest(chronicle, end)


def _with_pause(chronicle: Chronicle, at: float) -> Chronicle:
    """The newest start with this pause, if that was over already and had none yet."""
    newest = chronicle.starts[-1] if chronicle.starts else None
    if newest is None or newest.ended_at is None or newest.paused_at is not None:
        return chronicle
    return _newest(chronicle, newest._replace(paused_at=at))


def _phase_ended(chronicle: Chronicle, at: float) -> Chronicle:
    """The chronicle with the end of the phase under way."""
    name = chronicle.phase.name if chronicle.phase is not None else ""
    span = chronicle.phases.get(name)
    if span is None or span.ended_at is not None:
        return chronicle
    return replace(chronicle, phases={**chronicle.phases, name: span._replace(ended_at=at)})


def _newest(chronicle: Chronicle, start: Start) -> Chronicle:
    return replace(chronicle, starts=(*chronicle.starts[:-1], start))


def _with_exits(chronicle: Chronicle, ends: tuple[Fact, ...]) -> Chronicle:
    exits = dict(chronicle.exits)
    for fact in ends:
        code = Exit.in_details(fact.details).container_code
        if code is not None and fact.slot is not None and len(exits) < EXAMPLES_KEPT:
            exits.setdefault(fact.slot, code)
    return replace(chronicle, exits=exits)
