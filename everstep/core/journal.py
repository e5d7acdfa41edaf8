"""What a job writes down beside its model: lines of run.log, and what summary.json says of each run.

A run is a start of all processes, numbered from 1 within its phase. Whatever a step of the loop changed
is read off the states before and after it; here is nothing that any rule depends on. Entries wait in the
state until somebody who can reach the folder has written them. Writing one twice writes it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from everstep.core.facts import Detail
from everstep.core.levels import FaultClass, Level
from everstep.core.moves import Decided, Event, PlanEnded, Watched
from everstep.core.state import JobState, Mode, Record, find_record
from everstep.core.watching import all_started
from everstep.core.world import Entry

ENTRIES_KEPT = 40
"""Where nobody can write, the oldest are given up: every restart is told in its Recovery too."""
TEXT_KEPT = 300
MAIN = 0
"""The number of what no run says of itself."""

PLANNED = frozenset({FaultClass.PLANNED, FaultClass.PREEMPTED, FaultClass.MAINTENANCE})


def written(state: JobState, last: int) -> JobState:
    """The state once all entries up to this number are where they belong."""
    return replace(state, journal=tuple(e for e in state.journal if e.number > last))


def kept(before: JobState, event: Event, after: JobState) -> JobState:
    """The state after a step of the loop, with what is worth a line noted down."""
    began = start_of(before, event, after)
    after = replace(after, runs=after.runs + (began is not None))
    found = [
        *_of_records(before, after),
        *_of_pauses(before, after),
        *([_started(after, began)] if began is not None else ()),
        *_of_the_end(before, event, after),
    ]
    return _with(after, found)


def noted(state: JobState, text: str) -> JobState:
    """The state with one more line for the log."""
    return _with(state, [_entry(state, MAIN, text)])


def _with(state: JobState, found: list[Entry]) -> JobState:
    if not found:
        return state
    first = state.journal_number + 1
    numbered = [replace(entry, number=first + i) for i, entry in enumerate(found)]
    return replace(
        state,
        journal=(*state.journal, *numbered)[-ENTRIES_KEPT:],
        journal_number=numbered[-1].number,
    )


def _entry(state: JobState, run: int, text: str, **told: Detail) -> Entry:
    return Entry(
        phase=state.phase.name,
        model_dir=state.phase.model_dir,
        began=state.phase_started_at or state.now,
        at=state.now,
        run=run,
        text=text[:TEXT_KEPT],
        told=told,
    )


# -- Runs ---------------------------------------------------------------------------------------


def start_of(before: JobState, event: Event, after: JobState) -> float | None:
    """When all processes were started anew, if they were in this step of the loop."""
    is_new = before.generation != after.generation
    if isinstance(event, PlanEnded):
        return after.running_since if is_new or before.running_since is None else None
    if isinstance(event, Watched) and before.mode is Mode.READING:
        # What the world shows may be a generation of which nothing ran, or not all.
        return after.now if is_new and all_started(event.report, after.living) else None
    return None


def _started(state: JobState, began: float) -> Entry:
    nodes = sorted({slot.node for slot in state.slots.values() if slot.node})
    many = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    where = f"{' '.join(nodes[:8])}{many}"
    text = f"generation {state.generation} started on {where}, from {origin(state)}"
    return _entry(
        state,
        state.runs,
        text,
        generation=state.generation,
        start_time=began,
        end_time=None,
        status="running",
        failure_reason=None,
        starting_step=starting_step(state, run=state.runs),
        loaded_checkpoint=state.resume.path if state.resume is not None else None,
        nodes=len(state.living),
    )


UNKNOWN = "an unknown step"


def origin(state: JobState) -> str:
    """Where the newest start goes on from, in words, as far as that is known."""
    if starting_step(state, run=state.runs) == 0:
        return "the beginning"
    if state.resume is None:
        return UNKNOWN
    return state.resume.name + ("" if state.resume.step is not None else f", {UNKNOWN}")


def starting_step(state: JobState, *, run: int) -> int | None:
    """Before the first run of a job there is nothing. Later a script may find what nobody else knows of."""
    if state.resume is not None:
        return state.resume.step
    was_run_before = state.phase_index == state.spec.first_phase and state.first_generation > 1
    return 0 if run <= 1 and not was_run_before else None


def _ended(state: JobState, status: str, reason: str | None) -> dict[str, Detail]:
    """What the summary says of a run that is over. A step nobody saw is not made up."""
    start = starting_step(state, run=state.runs)
    progress = None if state.step is None or start is None else max(state.step - start, 0)
    return {
        "end_time": state.now,
        "status": status,
        "failure_reason": reason,
        "ending_step": state.step,
        "steps_progressed": progress,
    }


# -- Restarts -----------------------------------------------------------------------------------


def _of_records(before: JobState, after: JobState) -> Iterator[Entry]:
    if before.phase_index != after.phase_index:
        return
    for record in after.ledger.records:
        if record.n > before.ledger.recoveries:
            yield _decided(after, record, was_running=before.running_since is not None)
            continue
        old = find_record(before.ledger, record.n)
        if old is not None and old.result != record.result:
            yield _came_out(after, record)


def _decided(state: JobState, record: Record, *, was_running: bool) -> Entry:
    decision = record.decision
    what = f"restart {record.n}: {decision.fault.label} -> {decision.level}"
    if record.refused_by is not None:
        return _entry(state, MAIN, f"{what}, refused: budget {record.refused_by} is used up")
    bills = ", ".join(f"{units} {name}" for name, units in record.bills.items())
    billed = f" (bills {bills})" if bills else ""
    if not was_running or not decision.new_incident:
        return _entry(state, MAIN, f"{what}: {decision.reason}{billed}")
    status = "restarted" if decision.fault.cls in PLANNED else "failed"
    told = _ended(state, status, decision.fault.label)
    return replace(
        _entry(state, MAIN, f"{what}: {decision.reason}{billed}", **told), about=state.runs
    )


def _came_out(state: JobState, record: Record) -> Entry:
    whence = "" if record.resume_step is None else f", from step {record.resume_step}"
    return _entry(state, MAIN, f"restart {record.n}: {record.result}{whence}")


# -- The rest -----------------------------------------------------------------------------------


def _of_pauses(before: JobState, after: JobState) -> Iterator[Entry]:
    if before.mode is not Mode.PAUSING and after.mode is Mode.PAUSING:
        reason = f": {after.paused_reason}" if after.paused_reason else ""
        yield _entry(after, MAIN, f"paused{reason}")
    if before.mode is Mode.PAUSED and after.mode not in (Mode.PAUSED, Mode.CLOSING):
        yield _entry(after, MAIN, "resumed")


END_STATUS: Mapping[str, str] = {"completed": "success", "failed": "non_recoverable_failure"}


def _of_the_end(before: JobState, event: Event, after: JobState) -> Iterator[Entry]:
    if isinstance(event, Decided) and event.decision.level is Level.NOTE:
        decision = event.decision
        yield _entry(after, MAIN, f"noted: {decision.fault.label}: {decision.reason}")
    if len(after.finished) > len(before.finished):
        over = after.finished[-1]
        status = END_STATUS.get(over.state, over.state)
        reason = after.ending_reason if over.state == "failed" else None
        text = f"phase {over.name} {over.state}" + (f": {reason}" if reason else "")
        yield replace(_entry(after, MAIN, text, **_ended(after, status, reason)), about=after.runs)
    elif before.mode is not Mode.CLOSING and after.mode is Mode.CLOSING:
        text = f"stopped: {after.ending_reason}"
        told = _ended(after, "stopped", after.ending_reason)
        yield replace(_entry(after, MAIN, text, **told), about=after.runs)
