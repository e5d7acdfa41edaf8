"""An incident in a few values, from the records of its restarts: what a notice says of it."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.chronicle.chronicle import Chronicle, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLine:
    """One restart of an incident, and what came of it."""

    n: int
    level: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSummary:
    """An incident, from its fault to the start of all processes or the end of the job."""

    phase: str
    number: int
    cls: str
    owner: str
    cause: str  # `80E01801 on n2/0`
    code: str | None
    node: str | None
    began: float
    restarts: tuple[RestartLine, ...]


def closed_by(chronicle: Chronicle, generation: int) -> IncidentSummary | None:
    """The incident that the start of this generation closed; None once its records are dropped."""
    closing = next((r for r in chronicle.records if r.generation_to == generation), None)
    return None if closing is None else _summary(chronicle, closing)


def given_up(chronicle: Chronicle) -> IncidentSummary | None:
    """The incident whose levels all failed, of a job that has failed; None where none was tried."""
    newest = chronicle.records[-1] if chronicle.records else None
    if newest is None or newest.result != "failed":
        return None
    return _summary(chronicle, newest)


def _summary(chronicle: Chronicle, closing: Record) -> IncidentSummary:
    records = [record for record in chronicle.records if _are_of_one_incident(record, closing)]
    fault = records[0].decision.fault
    return IncidentSummary(
        phase=closing.phase,
        number=closing.incident,
        cls=str(fault.cls),
        owner=str(fault.owner),
        cause=fault.label,
        code=fault.code,
        node=fault.node,
        began=next(filter(None, map(_began, records)), fault.at),
        restarts=tuple(
            RestartLine(n=record.n, level=str(record.decision.level), result=record.result)
            for record in records
        ),
    )


def _began(record: Record) -> float | None:
    """When the time began that its fault cost; None in a record that has not the first fact."""
    detect_s = record.stages_s.get("detect")
    return None if detect_s is None else record.decision.at - detect_s


def _are_of_one_incident(record: Record, other: Record) -> bool:
    return (record.phase, record.incident) == (other.phase, other.incident)
