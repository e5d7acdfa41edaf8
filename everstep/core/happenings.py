"""What a job's user may want to hear of, and what of it is told to others by its ModelArts name.

Read off the states before and after a step of the loop, like the journal; no rule depends on it. The
newest are kept. Those with a name of their own wait until they were told, or until too much came after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from everstep.core import journal
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.moves import Begun, Decided, Event, PlanEnded, Watched
from everstep.core.playbook import GOOD_NEWS
from everstep.core.starts import exit_code, told_facts
from everstep.core.state import HAPPENINGS_KEPT, Happening, JobState, Mode, Record
from everstep.core.views import moment, recover_name
from everstep.core.world import Journal, Notice

TEXT_KEPT = 120
WORKERS_NAMED = 8
"""So many workers of a group have a line of their own; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of happening: how grave it is, who tells it, and its name if others may be told."""

    level: str = "Info"
    source: str = "Job"
    event: str | None = None


KINDS: Mapping[str, Kind] = {
    "created": Kind(),
    "queued": Kind(),
    "prechecking": Kind(source="Task"),
    "prechecked": Kind(source="Task"),
    "precheck_failed": Kind(source="Task", level="Error"),
    "started": Kind(event="JobStarted"),
    "phase_started": Kind(),
    "restarted": Kind(event="JobRestarted"),
    "exited": Kind(source="Task", level="Error"),
    "exited_well": Kind(source="Task"),
    "noted": Kind(level="Warning"),
    "bettered": Kind(),
    "warned": Kind(level="Warning"),
    "warned_no_more": Kind(),
    "hanged": Kind(level="Warning", event="JobHanged"),
    "preempted": Kind(level="Warning", event="JobPreempted"),
    "answered": Kind(level="Warning"),
    "broken": Kind(level="Error", source="K8S"),
    "isolated": Kind(level="Warning", source="K8S"),
    "refused": Kind(level="Warning"),
    "paused": Kind(),
    "resumed": Kind(),
    "completed": Kind(event="JobCompleted"),
    "failed": Kind(level="Error", event="JobFailed"),
    "stopped": Kind(level="Warning", event="JobTerminated"),
}

EVENTS: tuple[str, ...] = tuple(kind.event for kind in KINDS.values() if kind.event is not None)
"""The names that somebody may ask to be told of."""

BROKEN = frozenset(
    {FaultClass.DEVICE, FaultClass.DEVICE_USER, FaultClass.DEVICE_FATAL, FaultClass.NODE}
)

ENDED_BY = ("exit code ", "signal ")
"""How the message of an end begins; its words follow."""

ENDS: Mapping[str, str] = {
    "Completed": "completed",
    "Failed": "failed",
    "Invalid": "failed",
    "Terminated": "stopped",
    "Canceled": "stopped",
}

Found = tuple[str, float, str]
"""Kind, time, text."""


def kept(before: JobState, event: Event, after: JobState) -> JobState:
    """The state after a step of the loop, with what is worth a word noted down."""
    after = told(after, _taken(event))
    found = [
        *_of_the_beginning(before, event, after),
        *_of_prechecks(event),
        *_of_ends_of_processes(event, after),
        *_of_answers(before, event, after),
        *_of_isolations(before, after),
        *_of_warnings(before, after),
        *_of_starts(before, event, after),
        *_of_pauses(before, after),
        *_of_the_end(before, after),
    ]
    if isinstance(event, Begun) and not after.first_run:
        after = replace(after, first_run=after.job.run, created_at=after.now)
    return _with(after, found) if found else after


def refused(state: JobState, text: str) -> JobState:
    """The state after somebody was refused whom no answer reaches; once for the same words in a row."""
    if state.happenings and state.happenings[-1][2:] == ("refused", _short(text)):
        return state
    return _with(state, [("refused", state.now, text)])


def _with(state: JobState, found: list[Found]) -> JobState:
    first = state.happening_number + 1
    new = tuple(
        Happening(number=first + i, at=at, kind=kind, text=_short(text))
        for i, (kind, at, text) in enumerate(found)
    )
    known = (*state.happenings, *new)
    given_up = [h for h in known[:-HAPPENINGS_KEPT] if _is_waiting(state, h)]
    state = replace(state, happenings=known[-HAPPENINGS_KEPT:], happening_number=new[-1].number)
    if not given_up:
        return state
    named = ", ".join(f"{h.number} {KINDS[h.kind].event}" for h in given_up)
    return journal.noted(state, f"nobody took these events in time, they are given up: {named}")


def _short(text: str) -> str:
    return text if len(text) <= TEXT_KEPT else f"{text[: TEXT_KEPT - 1]}…"


# -- Telling ------------------------------------------------------------------------------------


def of(state: JobState) -> Journal:
    """All that is still to be written, and to be told."""
    return replace(untold(state), entries=state.journal)


def untold(state: JobState) -> Journal:
    """What is still to be told."""
    return Journal(
        job=state.job.id,
        run=state.first_run,
        topic=state.spec.topic,
        notices=tuple(_notice(h) for h in state.happenings if _is_waiting(state, h)),
    )


def _is_waiting(state: JobState, happening: Happening) -> bool:
    name, wanted = KINDS[happening.kind].event, state.spec.events
    return name is not None and happening.number > state.told and (not wanted or name in wanted)


def _notice(happening: Happening) -> Notice:
    kind = KINDS[happening.kind]
    return Notice(
        number=happening.number,
        event=kind.event or "",
        at=happening.at,
        level=kind.level,
        message=happening.text,
    )


def told(state: JobState, last: int) -> JobState:
    """The state once everything up to this number was taken."""
    return replace(state, told=max(state.told, last))


def _taken(event: Event) -> int:
    """How far those came who told beside their work."""
    match event:
        case Watched(report=report):
            return report.told
        case PlanEnded(outcome=outcome) if outcome is not None:
            return outcome.told
        case _:
            return 0


def events(state: JobState) -> list[dict[str, Any]]:
    """The newest ones, oldest first, in the shape of ModelArts' list."""
    return [_shown(happening) for happening in state.happenings]


def of_an_end(kind: str, reason: str, at: float) -> list[dict[str, Any]]:
    """The same of a job that could leave nothing: its document was refused, it was terminated."""
    return [_shown(Happening(number=1, at=at, kind=kind, text=f"{kind}: {reason}"))]


def _shown(happening: Happening) -> dict[str, Any]:
    kind = KINDS[happening.kind]
    return {
        "number": happening.number,
        "time": moment(happening.at),
        "level": kind.level,
        "message": happening.text,
        "source": kind.source,
        "event": kind.event,
    }


# -- Launches and starts --------------------------------------------------------------------------


def _of_the_beginning(before: JobState, event: Event, after: JobState) -> Iterator[Found]:
    is_first = not before.first_run and not before.generation
    if isinstance(event, Begun) and is_first:
        yield "created", after.now, f"job {after.job.id} was created"
    if before.mode is Mode.PENDING and after.mode is Mode.LAUNCHING:
        nodes = after.phase.nodes
        yield "queued", after.now, f"phase {after.phase.name} is queued for {_nodes(nodes)}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _of_prechecks(event: Event) -> Iterator[Found]:
    if not isinstance(event, PlanEnded) or event.outcome is None:
        return
    outcome = event.outcome
    if outcome.prechecked is None:
        return
    began, ended = outcome.prechecked
    took = f"after {ended - began:.1f} s"
    yield "prechecking", began, f"{_workers(outcome.living)}: the pre-check started"
    failed = [fact for fact in told_facts(event) if fact.family == "precheck"]
    for fact in failed[:WORKERS_NAMED]:
        who = f"worker-{fact.slot}" if fact.slot is not None else fact.where
        check = fact.kind.partition(".")[2]
        whose = ", hardware" if fact.details.get("hardware") is True else ""
        yield (
            "precheck_failed",
            ended,
            f"{who}: pre-check {check} failed {took} ({fact.node}{whose})",
        )
    if len(failed) > WORKERS_NAMED:
        yield "precheck_failed", ended, f"and {len(failed) - WORKERS_NAMED} more checks failed"
    if outcome.step is not Step.PRECHECK:
        yield "prechecked", ended, f"{_workers(outcome.living)}: the pre-check passed {took}"


def _workers(slots: tuple[int, ...]) -> str:
    if len(slots) <= WORKERS_NAMED:
        return " ".join(f"worker-{slot}" for slot in slots)
    return f"all {len(slots)} workers"


def _of_starts(before: JobState, event: Event, after: JobState) -> Iterator[Found]:
    at = journal.start_of(before, event, after)
    if at is None:
        return
    origin = journal.origin(after)
    what = f"phase {after.phase.name} on {_nodes(len(after.living))}, from {origin}{_after_waiting(event)}"
    if before.started_at is None:
        yield "started", at, f"running: {what}"
    elif after.runs == 1:
        yield "phase_started", at, f"running: {what}"
    else:
        yield "restarted", at, f"restarted: {what}"


def _after_waiting(event: Event) -> str:
    outcome = event.outcome if isinstance(event, PlanEnded) else None
    if outcome is None or not outcome.waited:
        return ""
    longest = max(outcome.waited, key=lambda waited: waited.s)
    return f", after {longest.s:g} s of waiting for {longest.what}"


# -- What went wrong, and what was done about it --------------------------------------------------


def _of_ends_of_processes(event: Event, after: JobState) -> Iterator[Found]:
    seen = [fact for fact in told_facts(event) if fact.kind == "process.exit"]
    ends = list({fact.slot: fact for fact in reversed(seen)}.values())[::-1]
    for fact in ends[:WORKERS_NAMED]:
        who = f"worker-{fact.slot}" if fact.slot is not None else "a worker"
        how, _, said = fact.message.partition(": ")
        why = said if how.startswith(ENDED_BY) else fact.details.get("exception")
        yield "exited", fact.at, f"{who}: exit code {exit_code(fact)}" + (f": {why}" if why else "")
    if len(ends) > WORKERS_NAMED:
        yield "exited", ends[-1].at, f"and {len(ends) - WORKERS_NAMED} more workers ended"
    if isinstance(event, Watched) and event.report.news == "done":
        yield "exited_well", after.now, f"{_workers(after.living)}: exit code 0"


def _of_answers(before: JobState, event: Event, after: JobState) -> Iterator[Found]:
    if not isinstance(event, Decided):
        return
    decision, fault = event.decision, event.decision.fault
    for record in _new_records(before, after):
        if record.refused_by is not None:
            yield (
                "refused",
                decision.at,
                f"{_level(record)} refused: quota {record.refused_by} used up",
            )
    is_note = decision.level is Level.NOTE
    if decision.new_incident and fault.cls is FaultClass.HANG:
        yield "hanged", decision.at, f"suspected suspension: {fault.message or decision.reason}"
    elif decision.new_incident and fault.cls is FaultClass.PREEMPTED:
        yield "preempted", decision.at, f"preempted: {fault.message or decision.reason}"
    elif is_note:
        kind = "bettered" if fault.kind in GOOD_NEWS else "noted"
        yield kind, decision.at, f"noted: {decision.reason}"
    if decision.is_executed:
        kind = "broken" if decision.new_incident and fault.cls in BROKEN else "answered"
        record = after.ledger.records[-1]
        text = f"restart {record.n}, {_level(record)}: {decision.reason}"
        yield kind, decision.at, text


def _new_records(before: JobState, after: JobState) -> tuple[Record, ...]:
    known = after.ledger.records or (after.finished[-1].ledger.records if after.finished else ())
    return tuple(r for r in known if r.n > before.ledger.recoveries)


def _level(record: Record) -> str:
    decision = record.decision
    name = recover_name(decision.level, decision.fault.cls, isolated=record.isolated)
    return name or str(decision.level)


def _of_isolations(before: JobState, after: JobState) -> Iterator[Found]:
    for node, why in after.isolated.items():
        if node not in before.isolated:
            yield "isolated", after.now, f"node {node} is isolated: {why}"


def _of_warnings(before: JobState, after: JobState) -> Iterator[Found]:
    for warning in after.warnings:
        if warning not in before.warnings:
            yield "warned", warning.at, f"warning: {warning.text}"
    for warning in before.warnings:
        if warning not in after.warnings and before.phase_index == after.phase_index:
            yield "warned_no_more", after.now, f"over: {warning.text}"


# -- The rest ---------------------------------------------------------------------------------


def _of_pauses(before: JobState, after: JobState) -> Iterator[Found]:
    if before.mode is not Mode.PAUSING and after.mode is Mode.PAUSING:
        reason = f": {after.paused_reason}" if after.paused_reason else ""
        yield "paused", after.now, f"paused{reason}"
    if before.mode is Mode.PAUSED and after.mode not in (Mode.PAUSED, Mode.CLOSING):
        yield "resumed", after.now, "resumed"


def _of_the_end(before: JobState, after: JobState) -> Iterator[Found]:
    over = (Mode.CLOSING, Mode.ENDED)
    if before.mode in over or after.mode not in over or after.ending is None:
        return
    kind = ENDS[after.ending]
    yield kind, after.now, f"{kind}: {after.ending_reason}"
