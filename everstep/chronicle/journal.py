"""What is written beside a job's model: lines of run.log, and the runs in summary.json.

A run is a start of all processes, numbered from 1 within its phase. Entries wait in the chronicle until
an agent that reaches the folder has written them. Writing one twice writes it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from everstep.chronicle import record_rows, records
from everstep.chronicle.chronicle import (
    ENTRIES_KEPT,
    Chronicle,
    Entry,
    PhaseChronicle,
    SummaryValue,
)
from everstep.core.facts import NUMBERS_CHECKED
from everstep.core.levels import FaultClass
from everstep.core.loop.job_events import (
    DocumentChanged,
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
    WorkerChanged,
)
from everstep.core.world import Checkpoint

TEXT_KEPT, ERROR_KEPT = 300, 100
ROWS_KEPT = 10
"""Runs that keep their row while nothing can be written: a row is larger than a line."""
MAIN = 0
"""`Entry.run` of a line that the job writes, not a run."""

PLANNED = frozenset({FaultClass.PLANNED, FaultClass.PREEMPTED, FaultClass.MAINTENANCE})


def written(chronicle: Chronicle, last: int) -> Chronicle:
    """The chronicle once all entries up to this number are where they belong."""
    return replace(chronicle, entries=tuple(e for e in chronicle.entries if e.number > last))


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with what the event says for run.log. A job that never began has none."""
    if isinstance(event, PhaseBegan):
        begun = PhaseChronicle(
            name=event.phase, model_dir=event.model_dir, workdir=event.workdir, began=event.at
        )
        return replace(chronicle, phase=begun, exits={})
    phase = chronicle.phase
    if phase is None:
        return chronicle
    entry = (
        _started(phase, event) if isinstance(event, Started) else _entry_of(chronicle, phase, event)
    )
    if entry is None:
        return chronicle
    if entry.row:
        phase = replace(phase, run=entry.about or entry.run, row=entry.row)
        # A newer row of the same run replaces the older one, which need not be written.
        earlier = tuple(_without_replaced_row(e, entry) for e in chronicle.entries)
        chronicle = replace(chronicle, entries=earlier)
    phase = replace(phase, is_over=phase.is_over or isinstance(event, PhaseEnded))
    return _with(replace(chronicle, phase=phase), entry)


def _without_replaced_row(earlier: Entry, newer: Entry) -> Entry:
    """The earlier entry, without its row of summary.json if the newer entry has a row for the same run."""
    return (
        replace(earlier, row={}) if earlier.row and _run_of(earlier) == _run_of(newer) else earlier
    )


def _run_of(entry: Entry) -> tuple[str, float, int]:
    """Phase, its begin, and number: identifies the run whose row of summary.json an entry may have."""
    return entry.phase, entry.began, entry.about or entry.run


def line(chronicle: Chronicle, at: float, text: str) -> Chronicle:
    """The chronicle with one more line for the log."""
    return (
        chronicle
        if chronicle.phase is None
        else _with(chronicle, _entry(chronicle.phase, at, text))
    )


def _with(chronicle: Chronicle, entry: Entry) -> Chronicle:
    number = chronicle.entry_number + 1
    entries = (*chronicle.entries, replace(entry, number=number))
    if len(entries) > ENTRIES_KEPT:
        lost = chronicle.entries_lost + 1
        dropped = _dropped(entries)
        next_one = entries[dropped + 1]
        missing = "1 line is" if lost == 1 else f"{lost} lines are"
        text = f"{missing} missing up to here: {next_one.text}"[:TEXT_KEPT]
        newer = entries[dropped + 2 :]
        entries = (*entries[:dropped], replace(next_one, text=text), *newer)
        chronicle = replace(chronicle, entries_lost=lost)
    return replace(chronicle, entries=entries, entry_number=number)


def _dropped(entries: tuple[Entry, ...]) -> int:
    """Which entry is given up: the oldest that is only a line; the oldest of all where too many have rows.

    Nothing else has the row of an ended run.
    """
    if sum(1 for entry in entries if entry.row) > ROWS_KEPT:
        return 0
    return next((n for n, entry in enumerate(entries[:-1]) if not entry.row), 0)


def _entry(
    phase: PhaseChronicle,
    at: float,
    text: str,
    *,
    run: int = MAIN,
    about: int = 0,
    row: Mapping[str, SummaryValue] | None = None,
) -> Entry:
    """The next entry. `run`: that of the line; `about`: that of the row, if it is another one."""
    return Entry(
        phase=phase.name,
        model_dir=phase.model_dir,
        workdir=phase.workdir,
        began=phase.began,
        at=at,
        run=run,
        text=text[:TEXT_KEPT],
        about=about,
        row=row or {},
    )


def _entry_of(chronicle: Chronicle, phase: PhaseChronicle, event: JobEvent) -> Entry | None:
    match event:
        case Paused() | PhaseEnded() | JobEnding():
            return _end_of_run(phase, event)
        case LevelRefused(at=at, n=n, decision=decision, budget=budget):
            what = f"restart {n}: {decision.fault.label} -> {decision.level}"
            return _entry(phase, at, f"{what}, refused: budget {budget} is used up")
        case RestartDecided():
            return _decided(phase, event)
        case RestartEnded():
            return _restarted(chronicle, phase, event)
        case GivenUp(at=at):
            last = records.executed(chronicle)
            is_last = last is not None and last.result == "failed"
            return _entry(phase, at, f"restart {last.n}: failed") if last and is_last else None
        case FaultNoted(at=at, decision=decision):
            return _entry(phase, at, f"noted: {decision.fault.label}: {decision.reason}")
        case Progressed(at=at, before=before, after=after):
            counted = f"restarts without progress were {before}, now {after}"
            return _entry(phase, at, f"progress: {_furthest(event)}; {counted}")
        case DocumentChanged() | WorkerChanged() | Resumed():
            return _entry(phase, event.at, _words(event))
        case _:
            return None


def _restarted(chronicle: Chronicle, phase: PhaseChronicle, event: RestartEnded) -> Entry:
    whence = "" if event.resume_step is None else f", from step {event.resume_step}"
    outcome = f"{record_rows.result_word(event.result)}{whence}"
    entry = _entry(
        phase,
        event.at,
        f"restart {event.n}: {outcome}",
        about=phase.run,
        row=_going_on(phase) if event.stopped_nothing else _found_later(phase, event.resume),
    )
    record = records.find(chronicle, event.n)
    if record is None:
        return entry
    cause = f"{record.decision.fault.label} -> {record.decision.level}"
    sentence = f"restart {event.n} of {phase.name}: {cause}: {outcome}"
    return replace(entry, restart=sentence[:TEXT_KEPT], result=str(event.result))


def _words(event: DocumentChanged | WorkerChanged | Resumed) -> str:
    if isinstance(event, DocumentChanged):
        return document_change(event)
    return taken_over(event) if isinstance(event, WorkerChanged) else "resumed"


def taken_over(event: WorkerChanged) -> str:
    return f"worker {event.worker} watches the job, which worker {event.earlier} watched before"


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
        row={
            "generation": event.generation,
            "start_time": event.at,
            "end_time": None,
            "status": "running",
            "failure_reason": None,
            "starting_step": event.starting_step,
            "loaded_checkpoint": event.resume.path if event.resume is not None else None,
            "nodes": len(event.slots),
            **({"checks_numbers": True} if event.checks_numbers else {}),
        },
    )


UNKNOWN = "an unknown step"
FOUND_BY_SCRIPT = "what its script finds"


def origin(event: Started) -> str:
    """The checkpoint from which a start resumes, and what it passes over, in words."""
    newer = "" if event.newer_saved is None else event.newer_saved.text
    return "; ".join(filter(None, (loaded(event), newer, event.no_snapshot)))


def loaded(event: Started) -> str:
    """What a start resumes from, in words: `step 300 (ckpt/step_300.pkl)`, `step 312 in memory`."""
    if event.snapshot is not None:
        return event.snapshot.name
    if event.resume is not None:
        name = event.resume.name if event.resume.step is not None else UNKNOWN
        return f"{name} ({record_rows.file_of(event.resume.path)})"
    if event.starting_step == 0:
        return "the beginning"
    return FOUND_BY_SCRIPT if event.no_snapshot else UNKNOWN


def _has_ended(phase: PhaseChronicle) -> bool:
    return phase.row.get("end_time") is not None


Ending = Paused | RestartDecided | PhaseEnded | JobEnding


def _ended(
    phase: PhaseChronicle, event: Ending, status: str, reason: str | None, *, error: str = ""
) -> dict[str, SummaryValue]:
    """The row of summary.json for a run that ended. An unknown step stays unknown."""
    if not phase.row:
        return {}
    row = {**phase.row, "status": status, "failure_reason": reason}
    if _has_ended(phase):  # its restart came to nothing
        return row
    return {
        **row,
        "end_time": event.at,
        **({"error": error[:ERROR_KEPT]} if error else {}),
        "ending_step": event.step,
        "steps_progressed": gained(phase.row["starting_step"], event.step),
        **_saved(phase, event.saved),
    }


def gained(start: SummaryValue, end: SummaryValue) -> int | None:
    """The number of steps that a run gained. None if its first or last step is unknown."""
    if isinstance(start, int) and isinstance(end, int):
        return max(end - start, 0)
    return None


def _saved(phase: PhaseChronicle, saved: Checkpoint | None) -> dict[str, SummaryValue]:
    """The newest checkpoint that the run saved itself; nothing if it is the one that it began with."""
    if saved is None or saved.path == phase.row["loaded_checkpoint"]:
        return {"saved_step": None, "saved_checkpoint": None}
    return {"saved_step": saved.step, "saved_checkpoint": saved.path}


def _found_later(phase: PhaseChronicle, resume: Checkpoint | None) -> dict[str, SummaryValue]:
    """The checkpoint of an ended run that was first seen when the next run began with it."""
    saved = _saved(phase, resume) if _has_ended(phase) else {}
    last, step = phase.row.get("saved_step"), saved.get("saved_step")
    is_newer = isinstance(step, int) and (not isinstance(last, int) or step > last)
    return {**phase.row, **saved} if is_newer else {}


_OF_AN_END = frozenset(
    {"error", "ending_step", "steps_progressed", "saved_step", "saved_checkpoint"}
)


def _going_on(phase: PhaseChronicle) -> dict[str, SummaryValue]:
    """The row of a run that its restart did not end after all."""
    row = {key: value for key, value in phase.row.items() if key not in _OF_AN_END}
    return {**row, "status": "running", "failure_reason": None, "end_time": None} if row else {}


def _decided(phase: PhaseChronicle, event: RestartDecided) -> Entry:
    decision = event.decision
    bills = ", ".join(f"{units} {name}" for name, units in decision.bills.items())
    billed = f" (bills {bills})" if bills else ""
    text = (
        f"restart {event.n}: {decision.fault.label} -> {decision.level}: {decision.reason}{billed}"
    )
    if not event.was_running or not decision.new_incident:
        return _entry(phase, event.at, text)
    fault, status = decision.fault, "restarted" if decision.fault.cls in PLANNED else "failed"
    if fault.kind == NUMBERS_CHECKED:
        end = _ended(phase, event, "success", None)
    else:
        end = _ended(phase, event, status, fault.label, error=fault.message)
    return _entry(phase, event.at, text, about=phase.run, row=end)


END_STATUS: Mapping[str, str] = {"completed": "success", "failed": "non_recoverable_failure"}


def _end_of_run(phase: PhaseChronicle, event: Paused | PhaseEnded | JobEnding) -> Entry | None:
    reason: str | None = event.reason
    if isinstance(event, Paused):
        status = text = "paused"
    elif isinstance(event, PhaseEnded):
        status, text = END_STATUS.get(event.state, event.state), f"phase {phase.name} {event.state}"
        reason = reason if event.state == "failed" else None
    elif phase.is_over:
        return None
    else:
        status = text = "stopped"
    is_known = isinstance(event, Paused) and _has_ended(phase)
    end = {} if is_known else _ended(phase, event, status, reason)
    line = f"{text}: {reason}" if reason else text
    return _entry(phase, event.at, line, about=phase.run, row=end)


def document_change(event: DocumentChanged) -> str:
    """The change of a document as a sentence."""
    by = f" by {event.by}" if event.by else ""
    when = "a restart follows" if event.is_now else "it holds from the next restart on"
    return f"the document was changed{by}: {', '.join(event.what)}; {when}"
