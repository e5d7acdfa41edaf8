"""What is written beside a job's model: lines of run.log, and what summary.json says of each run.

A run is a start of all processes, numbered from 1 within its phase. Entries wait in the chronicle until
somebody who can reach the folder has written them. Writing one twice writes it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from everstep.chronicle import records
from everstep.chronicle.chronicle import ENTRIES_KEPT, Chronicle, Entry, PhaseChronicle
from everstep.core.facts import Detail
from everstep.core.levels import FaultClass
from everstep.core.loop.job_events import (
    FaultNoted,
    GivenUp,
    JobEnding,
    JobEvent,
    LevelRefused,
    Paused,
    PhaseBegan,
    PhaseEnded,
    Progressed,
    RestartDecided,
    RestartEnded,
    Resumed,
    Started,
)

TEXT_KEPT = 300
MAIN = 0
"""The number of what no run says of itself."""

PLANNED = frozenset({FaultClass.PLANNED, FaultClass.PREEMPTED, FaultClass.MAINTENANCE})


def written(known: Chronicle, last: int) -> Chronicle:
    """The chronicle once all entries up to this number are where they belong."""
    return replace(known, entries=tuple(e for e in known.entries if e.number > last))


def noted(known: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with what the event says for run.log. A job that never began has none."""
    if isinstance(event, PhaseBegan):
        begun = PhaseChronicle(name=event.phase, model_dir=event.model_dir, began=event.at)
        return replace(known, phase=begun, exits={})
    phase = known.phase
    if phase is None:
        return known
    if isinstance(event, Started):
        phase = replace(phase, run=event.run, starting_step=event.starting_step)
        return _with(replace(known, phase=phase), _started(phase, event))
    entry = _entry_of(known, phase, event)
    if isinstance(event, PhaseEnded):
        known = replace(known, phase=replace(phase, is_over=True))
    return known if entry is None else _with(known, entry)


def line(known: Chronicle, at: float, text: str) -> Chronicle:
    """The chronicle with one more line for the log."""
    return known if known.phase is None else _with(known, _entry(known.phase, at, text))


def _with(known: Chronicle, entry: Entry) -> Chronicle:
    number = known.entry_number + 1
    entries = (*known.entries, replace(entry, number=number))[-ENTRIES_KEPT:]
    return replace(known, entries=entries, entry_number=number)


def _entry(
    phase: PhaseChronicle,
    at: float,
    text: str,
    *,
    run: int = MAIN,
    about: int = 0,
    told: Mapping[str, Detail] | None = None,
) -> Entry:
    return Entry(
        phase=phase.name,
        model_dir=phase.model_dir,
        began=phase.began,
        at=at,
        run=run,
        text=text[:TEXT_KEPT],
        about=about,
        told=told or {},
    )


def _entry_of(  # noqa: C901  # a table of events
    known: Chronicle, phase: PhaseChronicle, event: JobEvent
) -> Entry | None:
    match event:
        case LevelRefused(at=at, n=n, decision=decision, budget=budget):
            what = f"restart {n}: {decision.fault.label} -> {decision.level}"
            return _entry(phase, at, f"{what}, refused: budget {budget} is used up")
        case RestartDecided():
            return _decided(phase, event)
        case RestartEnded(at=at, n=n, result=result, resume_step=step):
            whence = "" if step is None else f", from step {step}"
            return _entry(phase, at, f"restart {n}: {result}{whence}")
        case GivenUp(at=at):
            last = records.executed(known)
            is_last = last is not None and last.result == "failed"
            return _entry(phase, at, f"restart {last.n}: failed") if last and is_last else None
        case FaultNoted(at=at, decision=decision):
            return _entry(phase, at, f"noted: {decision.fault.label}: {decision.reason}")
        case Progressed(at=at, before=before, after=after):
            counted = f"restarts without progress were {before}, now {after}"
            return _entry(phase, at, f"progress: {_furthest(event)}; {counted}")
        case Paused(at=at, reason=reason):
            return _entry(phase, at, f"paused: {reason}" if reason else "paused")
        case Resumed(at=at):
            return _entry(phase, at, "resumed")
        case PhaseEnded():
            return _phase_ended(phase, event)
        case JobEnding(at=at, reason=reason, step=step) if not phase.is_over:
            end = _ended(phase, at, "stopped", reason, step)
            return _entry(phase, at, f"stopped: {reason}", about=phase.run, told=end)
        case _:
            return None


def _furthest(event: Progressed) -> str:
    if event.saved is not None:
        return f"a newer checkpoint, {event.saved.name}"
    return "a long healthy run" if event.step is None else f"step {event.step}"


# -- Runs ---------------------------------------------------------------------------------------


def _started(phase: PhaseChronicle, event: Started) -> Entry:
    nodes = event.nodes
    many = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    where = f"{' '.join(nodes[:8])}{many}"
    return _entry(
        phase,
        event.at,
        f"generation {event.generation} started on {where}, from {origin(event)}",
        run=event.run,
        told={
            "generation": event.generation,
            "start_time": event.at,
            "end_time": None,
            "status": "running",
            "failure_reason": None,
            "starting_step": event.starting_step,
            "loaded_checkpoint": event.resume.path if event.resume is not None else None,
            "nodes": len(event.slots),
        },
    )


UNKNOWN = "an unknown step"


def origin(event: Started) -> str:
    """Where a start goes on from, in words, as far as that is known."""
    if event.starting_step == 0:
        return "the beginning"
    if event.resume is None:
        return UNKNOWN
    return event.resume.name + ("" if event.resume.step is not None else f", {UNKNOWN}")


def _ended(
    phase: PhaseChronicle, at: float, status: str, reason: str | None, step: int | None
) -> dict[str, Detail]:
    """What the summary says of a run that is over. A step nobody saw is not made up."""
    start = phase.starting_step
    progress = None if step is None or start is None else max(step - start, 0)
    return {
        "end_time": at,
        "status": status,
        "failure_reason": reason,
        "ending_step": step,
        "steps_progressed": progress,
    }


def _decided(phase: PhaseChronicle, event: RestartDecided) -> Entry:
    decision = event.decision
    bills = ", ".join(f"{units} {name}" for name, units in decision.bills.items())
    billed = f" (bills {bills})" if bills else ""
    text = (
        f"restart {event.n}: {decision.fault.label} -> {decision.level}: {decision.reason}{billed}"
    )
    if not event.was_running or not decision.new_incident:
        return _entry(phase, event.at, text)
    status = "restarted" if decision.fault.cls in PLANNED else "failed"
    end = _ended(phase, event.at, status, decision.fault.label, event.step)
    return _entry(phase, event.at, text, about=phase.run, told=end)


END_STATUS: Mapping[str, str] = {"completed": "success", "failed": "non_recoverable_failure"}


def _phase_ended(phase: PhaseChronicle, event: PhaseEnded) -> Entry:
    status = END_STATUS.get(event.state, event.state)
    reason = event.reason if event.state == "failed" else None
    text = f"phase {phase.name} {event.state}" + (f": {reason}" if reason else "")
    end = _ended(phase, event.at, status, reason, event.step)
    return _entry(phase, event.at, text, about=phase.run, told=end)
