"""The restart records: one for each Recovery, and for each level that a budget refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from everstep.chronicle import record_rows
from everstep.chronicle.chronicle import CHANGES_KEPT, RECORDS_KEPT, Chronicle, Record, Reused
from everstep.core.bounds import cut
from everstep.core.deciding.decision import Decision, Remedy
from everstep.core.facts import EXAMPLES_KEPT
from everstep.core.loop.job_events import (
    BillReturned,
    FirstStepSeen,
    GivenUp,
    JobEvent,
    LevelRefused,
    RestartDecided,
    RestartEnded,
)
from everstep.core.slots import format_ranges

FAILED = "downgrade"
"""The result of a level that failed, as long as another one follows."""

NEWER_KEPT, NEWER_RECORDS_KEPT = 200, 5
SEEN_LINES, SEEN_CHARACTERS = 4, 100
"""Most lines and characters of `Decision.seen` in a record. The history of the decision has all of it."""


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """Apply the event to the restart records."""
    match event:
        case LevelRefused():
            return _with(
                chronicle,
                _record(chronicle, event, result="quotaExceeded", ended_at=event.decision.at),
            )
        case RestartDecided():
            return _with(_note_early_end(chronicle, event), _record(chronicle, event))
        case RestartEnded():
            return _close(chronicle, event)
        case BillReturned(n=n, budgets=budgets):
            record = find(chronicle, n)
            billed = {} if record is None else record.bills
            bills = {name: units for name, units in billed.items() if name not in budgets}
            return _changed(chronicle, n, bills=bills)
        case FirstStepSeen():
            return _first_step(chronicle, event)
        case GivenUp():
            return _given_up(_note_early_end(chronicle, event), event)
        case _:
            return chronicle


def of_phase(chronicle: Chronicle, phase: str) -> tuple[Record, ...]:
    return tuple(record for record in chronicle.records if record.phase == phase)


def executed(chronicle: Chronicle) -> Record | None:
    """The newest restart of this phase that was carried out."""
    done = (
        r
        for r in reversed(chronicle.records)
        if r.refused_by is None and _is_of_phase(chronicle, r)
    )
    return next(done, None)


def find(chronicle: Chronicle, n: int) -> Record | None:
    return next((r for r in chronicle.records if r.n == n and _is_of_phase(chronicle, r)), None)


def _is_of_phase(chronicle: Chronicle, record: Record) -> bool:
    return chronicle.phase is not None and record.phase == chronicle.phase.name


def _record(chronicle: Chronicle, event: LevelRefused | RestartDecided, **fields: Any) -> Record:
    decision = event.decision
    is_refused = isinstance(event, LevelRefused)
    is_new = decision.new_incident and not is_refused
    return Record(
        n=event.n,
        incident=event.incident,
        phase=chronicle.phase.name if chronicle.phase is not None else "",
        decision=_stored_decision(decision),
        generation_from=event.generation,
        bills=dict(decision.bills),
        # What the restart is to do; `_close` replaces it by what was done.
        isolated=bool(decision.remedy.isolate) and not is_refused,
        stages_s={"detect": _detect_s(chronicle, event), "decide": 0.0} if is_new else {},
        refused_by=event.budget if isinstance(event, LevelRefused) else None,
        worker=event.worker,
        step=_step(event),
        **fields,
    )


def _detect_s(chronicle: Chronicle, event: LevelRefused | RestartDecided) -> float:
    """Seconds from the fault until the decision, as far as they are lost.

    An observer may date a fault before the phase, before the run that the fault ended, or before the newest
    checkpoint of that run.
    """
    at, begun = event.decision.at, [event.decision.fault.at]
    if chronicle.phase is not None:
        begun.append(chronicle.phase.began)
        begun += [s.at for s in chronicle.starts[-1:] if s.phase == chronicle.phase.name]
    saved = event.saved if isinstance(event, RestartDecided) else None
    if saved is not None and saved.at <= at:  # else its clock is another one
        begun.append(saved.at)
    return round(max(at - max(begun), 0.0), 6)


def _step(event: LevelRefused | RestartDecided) -> int | None:
    """The newest step of the run that this restart ends; None where no run was under way."""
    if isinstance(event, LevelRefused) or not event.was_running:
        return None
    return event.step if event.decision.new_incident else None


def _stored_decision(decision: Decision) -> Decision:
    """The part of a decision that its record stores. The plan of its Recovery has all of it."""
    return replace(
        decision,
        ladder=(),
        remedy=Remedy(),
        other_faults=(),
        facts_for_later=(),
        occurrences=(),
        run_end=None,
        seen=tuple(cut(line, SEEN_CHARACTERS) for line in decision.seen[:SEEN_LINES]),
        fault=replace(
            decision.fault, nodes=decision.fault.nodes[:EXAMPLES_KEPT], slots=(), message=""
        ),
    )


def _close(chronicle: Chronicle, event: RestartEnded) -> Chronicle:
    record = find(chronicle, event.n)
    if record is None:
        return chronicle
    stages = {**record.stages_s, **event.stages_s}
    chronicle = _changed(
        chronicle,
        event.n,
        result=event.result,
        ended_at=event.at,
        generation_to=event.generation,
        isolated=record.isolated if event.isolated is None else event.isolated,
        before=event.before,
        after=event.after,
        resume_step=event.resume_step,
        resume_path=None if event.resume is None else event.resume.path,
        resume_from=record_rows.source(event.snapshot, has_checkpoint=event.resume is not None),
        newer_checkpoints="" if event.newer_saved is None else event.newer_saved.text[:NEWER_KEPT],
        evidence=event.evidence,
        stages_s=stages,
        notes=event.notes,
        waited=event.waited,
        works=event.works,
        reused=_reused(event),
    )
    return _with_stages(chronicle, stages) if event.stages_s else chronicle


def _reused(event: RestartEnded) -> Reused | None:
    if not (event.kept_ranks or event.stood_up_s):
        return None  # a record has few bytes
    return Reused(kept_ranks=format_ranges(event.kept_ranks), stood_up_s=event.stood_up_s)


def _first_step(chronicle: Chronicle, event: FirstStepSeen) -> Chronicle:
    """Add the time until the first step to the stages of the newest restart."""
    newest = chronicle.records[-1] if chronicle.records else None
    if (
        newest is None
        or not _is_of_phase(chronicle, newest)
        or newest.generation_to != event.generation
    ):
        return chronicle
    ended_at = newest.ended_at or event.at
    took = {"first_step": round(max(event.at - ended_at, 0.0), 6)}
    chronicle = _changed(chronicle, newest.n, stages_s={**newest.stages_s, **took})
    return _with_stages(chronicle, took)


def _with_stages(chronicle: Chronicle, more: Mapping[str, float]) -> Chronicle:
    if chronicle.phase is None:
        return chronicle
    totals = chronicle.stages_s.get(chronicle.phase.name, {})
    added = {**totals, **{k: round(totals.get(k, 0.0) + v, 6) for k, v in more.items()}}
    return replace(chronicle, stages_s={**chronicle.stages_s, chronicle.phase.name: added})


def _note_early_end(chronicle: Chronicle, event: RestartDecided | GivenUp) -> Chronicle:
    """Note in the record of the restart how far its run came, if the decision names that end."""
    end = event.decision.run_end
    if not event.decision.new_incident or end is None or end.when is None:
        return chronicle
    for record in [r for r in chronicle.records if r.generation_to == event.generation]:
        chronicle = _changed(chronicle, record.n, ended=f"ended {end.when}")
    return chronicle


def _given_up(chronicle: Chronicle, event: GivenUp) -> Chronicle:
    """Turn the record of the last failed level from a downgrade into a failure, with the reason."""
    last = executed(chronicle)
    if event.decision.new_incident or last is None or last.result != FAILED:
        return chronicle
    return _changed(chronicle, last.n, result="failed", end_reason=event.decision.reason)


def _with(chronicle: Chronicle, record: Record) -> Chronicle:
    return replace(chronicle, records=_bounded((*chronicle.records, record)))


def _changed(chronicle: Chronicle, n: int, **changes: Any) -> Chronicle:
    """The chronicle with record `n` of this phase changed, if it is still stored."""
    changed = (
        replace(r, **changes) if r.n == n and _is_of_phase(chronicle, r) else r
        for r in chronicle.records
    )
    return replace(chronicle, records=_bounded(tuple(changed)))


def _bounded(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The newest records. If they hold too many changed places, older ones keep only the count.

    What a start passed over is kept in the newest few; the Recovery's own result has it too.
    """
    newest: list[Record] = []
    left = CHANGES_KEPT
    for record in map(_trimmed, reversed(records[-RECORDS_KEPT:]), count()):
        left -= len(record.after)
        newest.append(record if left >= 0 or not record.after else _without_places(record))
    return tuple(reversed(newest))


def _trimmed(record: Record, age: int) -> Record:
    is_full = age < NEWER_RECORDS_KEPT or not record.newer_checkpoints
    return record if is_full else replace(record, newer_checkpoints="")


def _without_places(record: Record) -> Record:
    note = f"{len(record.after)} slots changed their place; the Recovery's own result names them"
    return replace(record, before={}, after={}, notes=(*record.notes, note))
