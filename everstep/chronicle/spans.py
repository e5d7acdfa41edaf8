"""The trace of a job: a span for the job, each phase, run of all processes, incident and restart.

A span is queued once it has ended, and goes out with the next publication. Its ID follows from its key, so
that a repeat is the same span. The steps of a restart are in its span; the exporter makes spans of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from everstep.chronicle.chronicle import Chronicle, QueuedSpan, Record, Start, Traced
from everstep.chronicle.records import SEEN_CHARACTERS, SEEN_LINES, of_phase
from everstep.core.bounds import cut
from everstep.core.deciding.decision import Decision, Fault
from everstep.core.levels import Level
from everstep.core.loop.job_events import (
    FaultNoted,
    GivenUp,
    JobEnding,
    JobEvent,
    LaunchEnded,
    PhaseBegan,
    PhaseEnded,
)

SPANS_KEPT = 30
"""Spans that wait to be sent, the newest: where no worker publishes, the oldest are dropped."""
NOTES_KEPT = 10
"""While so many wait, no span of a noted fault is added: a flood of these must not drop a restart."""
TEXT_MOST = 200

Attributes = Mapping[str, str | int | bool]


class _Window(NamedTuple):
    """When an incident began and ended."""

    began: float
    ended: float


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with the spans that ended, once all other topics have noted the same event."""
    if isinstance(event, PhaseBegan):
        return replace(chronicle, traced=Traced())
    if chronicle.phase is None or (chronicle.totals.ended and not isinstance(event, JobEnding)):
        return chronicle
    is_over = chronicle.phase.is_over or isinstance(event, PhaseEnded | JobEnding)
    chronicle = _with_launch_or_decision(chronicle, event)
    chronicle = _with_runs(_with_incidents(_with_restarts(chronicle), event.at, is_over=is_over))
    if is_over and not chronicle.traced.has_phase:
        chronicle = _with_phase(chronicle, event.at)
    return _with_job(chronicle, event) if isinstance(event, JobEnding) else chronicle


def _with_launch_or_decision(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """Queue the span of a launch that ended or of a decision without a restart."""
    match event:
        case LaunchEnded():
            return _queued(chronicle, _launch(chronicle, event))
        case FaultNoted(decision=decision) if len(chronicle.spans) < NOTES_KEPT:
            return _queued(chronicle, _without_steps(chronicle, decision))
        case GivenUp(decision=decision):
            return _queued(chronicle, _without_steps(chronicle, decision))
        case _:
            return chronicle


def sent(chronicle: Chronicle, last: int) -> Chronicle:
    """The chronicle once every span up to this number was exported."""
    return replace(chronicle, spans=tuple(span for span in chronicle.spans if span.number > last))


def _queued(chronicle: Chronicle, span: QueuedSpan) -> Chronicle:
    number = chronicle.span_number + 1
    spans = (*chronicle.spans, span._replace(number=number))[-SPANS_KEPT:]
    return replace(chronicle, spans=spans, span_number=number)


def _phase_key(chronicle: Chronicle) -> str:
    return f"phase/{chronicle.phase.name}" if chronicle.phase is not None else "job"


def run_key(phase: str, generation: int) -> str:
    """The span of a generation's run: the parent of what its ranks trace themselves."""
    return f"phase/{phase}/generation/{generation}"


def _launch(chronicle: Chronicle, event: LaunchEnded) -> QueuedSpan:
    """The span of a launch: from the wait for places until all processes were started or it failed."""
    phase_key = _phase_key(chronicle)
    return QueuedSpan(
        key=f"{phase_key}/launch/{chronicle.span_number + 1}",
        parent=phase_key,
        name="launch",
        began=event.at - sum(event.stages_s.values()),
        ended=event.at,
        is_error=event.result == "failed",
        attributes=_attributes(
            {"generation": event.generation, "nodes": event.nodes, "result": event.result}
        ),
        stages_s=event.stages_s,
        works=event.works,
    )


def _without_steps(chronicle: Chronicle, decision: Decision) -> QueuedSpan:
    """A decision that the job carries out by itself: to note a fault, or to fail."""
    phase_key, records = _phase_key(chronicle), _records(chronicle)
    phase_began = decision.at if chronicle.phase is None else chronicle.phase.began
    is_of_incident = not decision.new_incident and bool(records)
    return QueuedSpan(
        key=f"{phase_key}/{decision.level}/{chronicle.span_number + 1}",
        parent=f"{phase_key}/incident/{records[-1].incident}" if is_of_incident else phase_key,
        name=f"{decision.level} {decision.fault.cls}",
        began=min(max(decision.fault.at, phase_began), decision.at),
        ended=decision.at,
        is_error=decision.level is Level.FAIL,
        attributes=_attributes({**_fault(decision.fault), **_decided(decision)}),
        evidence=tuple(cut(line, SEEN_CHARACTERS) for line in decision.seen[:SEEN_LINES]),
    )


def _records(chronicle: Chronicle) -> tuple[Record, ...]:
    return of_phase(chronicle, chronicle.phase.name) if chronicle.phase is not None else ()


def _with_restarts(chronicle: Chronicle) -> Chronicle:
    """Queue restarts whose result does not change any more: those that are in the totals."""
    for record in _records(chronicle):
        if chronicle.traced.restart < record.n <= chronicle.settled:
            chronicle = _queued(chronicle, _restart(_phase_key(chronicle), record))
            chronicle = _without_works(chronicle, record)
            chronicle = replace(chronicle, traced=chronicle.traced._replace(restart=record.n))
    return chronicle


def _without_works(chronicle: Chronicle, record: Record) -> Chronicle:
    """The record without the works of agents, which only its span has."""
    bare = replace(record, works=())
    return replace(chronicle, records=tuple(bare if r is record else r for r in chronicle.records))


def _restart(phase_key: str, record: Record) -> QueuedSpan:
    decision = record.decision
    began = decision.at - record.stages_s.get("detect", 0.0)
    stages_s = {name: s for name, s in record.stages_s.items() if name != "first_step"}
    return QueuedSpan(
        key=f"{phase_key}/restart/{record.n}",
        parent=f"{phase_key}/incident/{record.incident}",
        name=f"restart {decision.level}",
        began=began,
        ended=began + sum(stages_s.values()),
        is_error=record.result not in ("success", "terminated"),
        attributes=_attributes(
            {
                **_fault_of(record),
                **_decided(decision),
                "restart": record.n,
                "result": record.result,
                "isolated": record.isolated,
                "generation.from": record.generation_from,
                "generation.to": record.generation_to,
                "resume_step": record.resume_step,
                "bills": " ".join(f"{name}={n}" for name, n in record.bills.items()) or None,
                "refused_by": record.refused_by,
                "evidence": record.evidence,
            }
        ),
        evidence=decision.seen,
        stages_s=stages_s,
        works=record.works,
    )


def _fault_of(record: Record) -> dict[str, str | int | None]:
    fault = _fault(record.decision.fault)
    return {"phase": record.phase, "incident": record.incident, **fault}


def _fault(fault: Fault) -> dict[str, str | int | None]:
    return {
        "fault.class": str(fault.cls),
        "fault.kind": fault.kind,
        "fault.code": fault.code,
        "fault.owner": str(fault.owner),
        "node": fault.node,
        "device": fault.device,
        "rank": fault.rank,
    }


def _decided(decision: Decision) -> dict[str, str]:
    return {"level": str(decision.level), "reason": cut(decision.reason, TEXT_MOST)}


def _attributes(attributes: Mapping[str, str | int | bool | None]) -> dict[str, str | int | bool]:
    return {f"everstep.{name}": value for name, value in attributes.items() if value is not None}


def _with_incidents(chronicle: Chronicle, now: float, *, is_over: bool) -> Chronicle:
    """Queue incidents after which training runs again, another one follows, or the phase is over.

    Each after the spans of its restarts (up to `traced.restart`), and in order.
    """
    records = [r for r in _records(chronicle) if r.incident > chronicle.traced.incident]
    for incident in sorted({record.incident for record in records}):
        of_one = [record for record in records if record.incident == incident]
        later = [record for record in records if record.incident > incident]
        window = _window(chronicle, of_one, later, now if is_over else None)
        if window is None or of_one[-1].n > chronicle.traced.restart:
            return chronicle
        span = QueuedSpan(
            key=f"{_phase_key(chronicle)}/incident/{incident}",
            parent=_phase_key(chronicle),
            name=f"incident {of_one[0].decision.fault.cls}",
            began=window.began,
            ended=window.ended,
            is_error=of_one[-1].result != "success",
            attributes=_attributes({**_fault_of(of_one[0]), "restarts": len(of_one)}),
        )
        chronicle = replace(
            _queued(chronicle, span), traced=chronicle.traced._replace(incident=incident)
        )
    return chronicle


def _window(
    chronicle: Chronicle, of_one: list[Record], later: list[Record], now: float | None
) -> _Window | None:
    """Begin and end of an incident. None while it lasts."""
    first, last = of_one[0], of_one[-1]
    began = first.decision.at - first.stages_s.get("detect", 0.0)
    next_start = next((s for s in chronicle.starts if s.generation == last.generation_to), None)
    if next_start is not None and next_start.first_step_at is not None:
        return _Window(began, next_start.first_step_at)
    if later:
        return _Window(began, later[0].decision.at)
    return None if now is None else _Window(began, now)


def _with_runs(chronicle: Chronicle) -> Chronicle:
    for start in chronicle.starts:
        if (
            start.ended_at is not None
            and start.at > chronicle.traced.run_at
            and _is_of_phase(chronicle, start)
        ):
            chronicle = _queued(chronicle, _run(start, start.ended_at))
            chronicle = replace(chronicle, traced=chronicle.traced._replace(run_at=start.at))
    return chronicle


def _is_of_phase(chronicle: Chronicle, start: Start) -> bool:
    return chronicle.phase is not None and start.phase == chronicle.phase.name


def _run(start: Start, ended: float) -> QueuedSpan:
    return QueuedSpan(
        key=run_key(start.phase, start.generation),
        parent=f"phase/{start.phase}",
        name="run",
        began=start.at,
        ended=ended,
        attributes=_attributes(
            {
                "phase": start.phase,
                "generation": start.generation,
                "nodes": start.nodes,
                "starting_step": start.starting_step,
                "step": start.step,
                "why": start.why or None,
            }
        ),
    )


def _with_phase(chronicle: Chronicle, now: float) -> Chronicle:
    name = chronicle.phase.name if chronicle.phase is not None else ""
    times = chronicle.phases.get(name)
    began = now if times is None else times.began_at
    ended = now if times is None or times.ended_at is None else times.ended_at
    attributes = _attributes({"phase": name})
    span = QueuedSpan(
        key=_phase_key(chronicle),
        parent="job",
        name=f"phase {name}",
        began=began,
        ended=ended,
        attributes=attributes,
    )
    return replace(_queued(chronicle, span), traced=chronicle.traced._replace(has_phase=True))


def _with_job(chronicle: Chronicle, event: JobEnding) -> Chronicle:
    if chronicle.is_traced:
        return chronicle
    span = QueuedSpan(
        key="job",
        parent="",
        name="job",
        began=event.at if chronicle.created_at is None else chronicle.created_at,
        ended=event.at,
        is_error=event.ending in ("Failed", "Invalid"),
        attributes=_attributes({"result": event.ending, "reason": cut(event.reason, TEXT_MOST)}),
    )
    return replace(_queued(chronicle, span), is_traced=True)
