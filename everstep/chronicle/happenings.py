"""The events that a user sees of a job, and the notices that are sent of some of them.

A `Happening` is such an event; a `JobEvent` is what the loop emits. The newest happenings are kept. A
notice that was not sent is dropped once its happening is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from everstep.chronicle import journal
from everstep.chronicle.chronicle import HAPPENINGS_KEPT, Chronicle, Happening
from everstep.chronicle.incidents import IncidentSummary, closed_by, given_up
from everstep.chronicle.shapes import moment
from everstep.chronicle.views import ENDED_STATE
from everstep.core.deciding.decision import Decision, Waited
from everstep.core.deciding.playbook import GOOD_NEWS
from everstep.core.facts import PREFETCH_DONE, Fact
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.loop.job_events import (
    AllEndedWell,
    DocumentChanged,
    FaultNoted,
    GivenUp,
    JobEnding,
    JobEvent,
    LevelRefused,
    NodeIsolated,
    NoticesWanted,
    Paused,
    PhaseBegan,
    Prechecked,
    ProcessesEnded,
    RequestRefused,
    RestartDecided,
    Resumed,
    RunBegan,
    SaveRequested,
    Started,
    StepsFound,
    StorageAwaited,
    WarningBegan,
    WarningOver,
    WorkerChanged,
)
from everstep.core.waits import WaitReason
from everstep.protocol.exits import Exit

TEXT_KEPT, START_KEPT = 120, 200  # a start says from which checkpoint it goes on
REFUSALS_COMPARED = 10
"""A refusal is left out if one of so many newest events has the same text."""
WORKERS_NAMED = 8
"""The most workers of a group that get a line each; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HappeningKind:
    """A kind of event: its severity, its source, and its name as a notice if it can be one."""

    level: str = "Info"
    source: str = "Job"
    event: str | None = None
    is_followed: bool = False  # its incident ends with another notice, sent by default instead


KINDS: Mapping[str, HappeningKind] = {
    "created": HappeningKind(),
    "queued": HappeningKind(),
    "prechecking": HappeningKind(source="Task"),
    "prechecked": HappeningKind(source="Task"),
    "precheck_failed": HappeningKind(source="Task", level="Error"),
    "started": HappeningKind(event="JobStarted"),
    "phase_started": HappeningKind(),
    "restarted": HappeningKind(event="JobRestarted"),
    "exited": HappeningKind(source="Task", level="Error"),
    "exited_well": HappeningKind(source="Task"),
    "noted": HappeningKind(level="Warning"),
    "good_news": HappeningKind(),
    "steps_found": HappeningKind(),
    "save_requested": HappeningKind(),
    "warned": HappeningKind(level="Warning"),
    "warning_over": HappeningKind(),
    "hanged": HappeningKind(level="Warning", event="JobHanged"),
    "preempted": HappeningKind(level="Warning", event="JobPreempted"),
    "hang_answered": HappeningKind(level="Warning", event="JobHanged", is_followed=True),
    "preemption_answered": HappeningKind(level="Warning", event="JobPreempted", is_followed=True),
    "answered": HappeningKind(level="Warning"),
    "storage_awaited": HappeningKind(level="Warning", event="JobWaiting"),
    "broken": HappeningKind(level="Error", source="K8S"),
    "isolated": HappeningKind(level="Warning", source="K8S"),
    "refused": HappeningKind(level="Warning"),
    "lines_lost": HappeningKind(level="Warning"),
    "changed": HappeningKind(),
    "taken_over": HappeningKind(),
    "paused": HappeningKind(),
    "resumed": HappeningKind(),
    "completed": HappeningKind(event="JobCompleted"),
    "failed": HappeningKind(level="Error", event="JobFailed"),
    "stopped": HappeningKind(level="Warning", event="JobTerminated"),
}

EVENTS: tuple[str, ...] = tuple(
    dict.fromkeys(kind.event for kind in KINDS.values() if kind.event is not None)
)
"""Names of all notices."""

HARDWARE_CLASSES = frozenset(
    {FaultClass.DEVICE, FaultClass.DEVICE_USER, FaultClass.DEVICE_FATAL, FaultClass.NODE}
)

EXIT_PREFIXES = ("exit code ", "signal ")
"""How the message of an exit begins; the exception follows."""

EventText = tuple[str, float, str]
"""Kind, time and text of a happening."""


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with the happenings of this event."""
    if isinstance(event, RunBegan):
        if chronicle.first_run:
            return chronicle
        chronicle = replace(chronicle, first_run=event.run, created_at=event.at)
    if isinstance(event, NoticesWanted):
        return replace(chronicle, wanted_events=event.wanted)
    generation = event.generation if isinstance(event, Started) else 0
    for kind, at, text in _texts_of(chronicle, event):
        most = START_KEPT if generation else TEXT_KEPT
        happening = Happening(
            number=0,
            at=at,
            kind=kind,
            text=_cut(text, most),
            generation=generation,
            waiting_reason=_waiting_reason(kind, event),
        )
        chronicle = _append(chronicle, happening)
    return chronicle


def _append(chronicle: Chronicle, new: Happening) -> Chronicle:
    """The chronicle with the happening under the next number."""
    number = chronicle.happening_number + 1
    happenings = (*chronicle.happenings, new._replace(number=number))
    undelivered = [h for h in happenings[:-HAPPENINGS_KEPT] if _is_unsent_notice(chronicle, h)]
    chronicle = replace(
        chronicle, happenings=happenings[-HAPPENINGS_KEPT:], happening_number=number
    )
    for h in undelivered:
        name = f"{h.number} {KINDS[h.kind].event}"
        chronicle = journal.line(
            chronicle, new.at, f"event {name} was not delivered in time and is dropped"
        )
    return chronicle


def repeats_a_refusal(chronicle: Chronicle, text: str) -> bool:
    """Whether one of the newest events is a refusal with this text."""
    newest = chronicle.happenings[-REFUSALS_COMPARED:]
    return any((h.kind, h.text) == ("refused", _cut(text, TEXT_KEPT)) for h in newest)


def lines_lost(chronicle: Chronicle, at: float) -> Chronicle:
    """The chronicle of a job that is over, with the number of lines that its run.log lacks."""
    lost = chronicle.entries_lost + len(chronicle.entries)
    what = "1 line" if lost == 1 else f"{lost} lines"
    text = f"{what} of run.log could not be written"
    happening = Happening(number=0, at=at, kind="lines_lost", text=text)
    return _append(chronicle, happening) if lost else chronicle


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# -- Notices ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event for a webhook."""

    number: int
    event: str
    at: float
    level: str
    message: str
    incident: IncidentSummary | None = None  # the one that ended with this event
    waiting_reason: str = ""


def unsent_notices(chronicle: Chronicle) -> tuple[Notice, ...]:
    """The notices that are still to be sent."""
    unsent = (h for h in chronicle.happenings if _is_unsent_notice(chronicle, h))
    return tuple(_notice(chronicle, h) for h in unsent)


def _is_unsent_notice(chronicle: Chronicle, happening: Happening) -> bool:
    """Whether it is sent as a notice, by the document's choice or else by default, and was not yet."""
    if happening.number <= chronicle.sent:
        return False
    kind = KINDS[happening.kind]
    if chronicle.wanted_events:
        return kind.event in chronicle.wanted_events
    return kind.event in EVENTS and not kind.is_followed


def _notice(chronicle: Chronicle, happening: Happening) -> Notice:
    kind = KINDS[happening.kind]
    return Notice(
        number=happening.number,
        event=kind.event or "",
        at=happening.at,
        level=kind.level,
        message=happening.text,
        incident=_incident(chronicle, happening),
        waiting_reason=happening.waiting_reason,
    )


def _incident(chronicle: Chronicle, happening: Happening) -> IncidentSummary | None:
    """The incident that ended with this event."""
    if happening.kind == "restarted":
        return closed_by(chronicle, happening.generation)
    return given_up(chronicle) if happening.kind == "failed" else None


def sent(chronicle: Chronicle, last: int) -> Chronicle:
    """The chronicle after all notices up to this number were sent."""
    return replace(chronicle, sent=max(chronicle.sent, last))


def events(chronicle: Chronicle) -> list[dict[str, Any]]:
    """The newest events as JSON, oldest first."""
    return [_as_json(happening) for happening in chronicle.happenings]


def of_an_end(kind: str, reason: str, at: float) -> list[dict[str, Any]]:
    """The only event of a job without a history: its document was refused, or it was terminated."""
    return [_as_json(Happening(number=1, at=at, kind=kind, text=f"{kind}: {reason}"))]


def _as_json(happening: Happening) -> dict[str, Any]:
    kind = KINDS[happening.kind]
    return {
        "number": happening.number,
        "time": moment(happening.at),
        "level": kind.level,
        "message": happening.text,
        "source": kind.source,
        "event": kind.event,
        "waiting_reason": happening.waiting_reason or None,
    }


# -- Kind and text of each event --------------------------------------------------------------------


def _texts_of(chronicle: Chronicle, event: JobEvent) -> Iterator[EventText]:  # noqa: C901  # a table of events
    match event:
        case RunBegan(at=at, job=job):
            yield "created", at, f"job {job} was created"
        case DocumentChanged(at=at):
            yield "changed", at, journal.document_change(event)
        case PhaseBegan(at=at, phase=phase, nodes=nodes):
            yield "queued", at, f"phase {phase} is queued for {_nodes(nodes)}"
        case Prechecked():
            yield from _precheck_texts(event)
        case Started():
            yield from _start_text(chronicle, event)
        case ProcessesEnded(ends=ends):
            yield from _exit_texts(ends)
        case AllEndedWell(at=at, slots=slots):
            yield "exited_well", at, f"{_workers(slots)}: exit code 0"
        case StepsFound(at=at, taken_from=text):
            yield "steps_found", at, f"steps: taken from '{text}'"
        case SaveRequested(at=at, text=text):
            yield "save_requested", at, f"checkpoint requested: {text}"
        case WarningBegan(at=at, text=text):
            yield "warned", at, f"warning: {text}"
        case WarningOver(at=at, text=text):
            yield "warning_over", at, f"over: {text}"
        case LevelRefused(decision=decision, budget=budget):
            yield "refused", decision.at, f"level {decision.level} refused: quota {budget} used up"
        case FaultNoted(decision=decision) | GivenUp(decision=decision):
            yield from _fault_text(decision)
        case RestartDecided(decision=decision, n=n):
            yield from _fault_text(decision)
            is_broken = decision.new_incident and decision.fault.cls in HARDWARE_CLASSES
            text = f"restart {n}, level {decision.level}: {decision.reason}"
            yield "broken" if is_broken else "answered", decision.at, text
            if Step.WRITABLE in decision.remedy.steps:
                why = decision.fault.message or decision.fault.kind
                yield (
                    "storage_awaited",
                    decision.at,
                    f"waiting for the storage to be writable: {why}",
                )
        case NodeIsolated(at=at, node=node, reason=why):
            yield "isolated", at, f"node {node} is isolated: {why}"
        case RequestRefused(at=at, text=text):
            if not repeats_a_refusal(chronicle, text):
                yield "refused", at, text
        case StorageAwaited(at=at, text=text):
            yield "storage_awaited", at, f"waiting for {text}"
        case WorkerChanged(at=at):
            yield "taken_over", at, journal.taken_over(event)
        case Paused(at=at, reason=reason):
            yield "paused", at, f"paused: {reason}" if reason else "paused"
        case Resumed(at=at):
            yield "resumed", at, "resumed"
        case JobEnding(at=at, ending=ending, reason=reason):
            yield ENDED_STATE[ending], at, f"{ENDED_STATE[ending]}: {reason}"
        case _:
            return


def _waiting_reason(kind: str, event: JobEvent) -> str:
    """The reason of the wait that an event is about; empty: it is about none."""
    match event:
        case RestartDecided() if kind == "storage_awaited":
            return WaitReason.STORAGE_UNAVAILABLE
        case StorageAwaited(waiting_reason=reason) | RequestRefused(waiting_reason=reason):
            return reason
        case Started(waited=waited) if waited:
            return _longest(waited).reason
        case _:
            return ""


def _longest(waited: Iterable[Waited]) -> Waited:
    return max(waited, key=lambda one: one.s)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _workers(slots: tuple[int, ...]) -> str:
    if len(slots) <= WORKERS_NAMED:
        return " ".join(f"worker-{slot}" for slot in slots)
    return f"all {len(slots)} workers"


def _precheck_texts(event: Prechecked) -> Iterator[EventText]:
    took = f"after {event.at - event.began:.1f} s"
    yield "prechecking", event.began, f"{_workers(event.slots)}: the pre-check started"
    for fact in event.failed[:WORKERS_NAMED]:
        who = f"worker-{fact.slot}" if fact.slot is not None else fact.where
        check = fact.kind.partition(".")[2]
        whose = ", hardware" if fact.details.get("hardware") is True else ""
        text = f"{who}: pre-check {check} failed {took} ({fact.node}{whose})"
        yield "precheck_failed", event.at, text
    if len(event.failed) > WORKERS_NAMED:
        more = len(event.failed) - WORKERS_NAMED
        yield "precheck_failed", event.at, f"and {more} more checks failed"
    if event.passed:
        yield "prechecked", event.at, f"{_workers(event.slots)}: the pre-check passed {took}"


def _start_text(chronicle: Chronicle, event: Started) -> Iterator[EventText]:
    phase = chronicle.phase.name if chronicle.phase is not None else ""
    what = f"phase {phase} on {_nodes(len(event.slots))}, from {journal.origin(event)}"
    if event.waited:
        longest = _longest(event.waited)
        what += f", after {longest.s:g} s of waiting for {longest.what}"
    if chronicle.started_at is None:
        yield "started", event.at, f"running: {what}"
    elif event.run == 1:
        yield "phase_started", event.at, f"running: {what}"
    else:
        yield "restarted", event.at, f"restarted: {what}"


def _exit_texts(facts: tuple[Fact, ...]) -> Iterator[EventText]:
    ends = list({fact.slot: fact for fact in reversed(facts)}.values())[::-1]
    for fact in ends[:WORKERS_NAMED]:
        who = f"worker-{fact.slot}" if fact.slot is not None else "a worker"
        how, _, words = fact.message.partition(": ")
        why = words if how.startswith(EXIT_PREFIXES) else fact.details.get("exception")
        code = Exit.in_details(fact.details).container_code
        yield "exited", fact.at, f"{who}: exit code {code}" + (f": {why}" if why else "")
    if len(ends) > WORKERS_NAMED:
        yield "exited", ends[-1].at, f"and {len(ends) - WORKERS_NAMED} more workers ended"


def _fault_text(decision: Decision) -> Iterator[EventText]:
    fault, is_noted = decision.fault, decision.level is Level.NOTE
    if decision.new_incident and fault.cls is FaultClass.HANG:
        kind = "hanged" if is_noted else "hang_answered"
        yield kind, decision.at, f"suspected suspension: {fault.message or decision.reason}"
    elif decision.new_incident and fault.cls is FaultClass.PREEMPTED:
        kind = "preempted" if is_noted else "preemption_answered"
        yield kind, decision.at, f"preempted: {fault.message or decision.reason}"
    elif is_noted:
        kind = "good_news" if fault.kind in (*GOOD_NEWS, PREFETCH_DONE) else "noted"
        yield kind, decision.at, f"noted: {decision.reason}"
