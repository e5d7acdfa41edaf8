"""The restart records: one for each Recovery, and for each level that a budget refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everstep.chronicle.chronicle import CHANGES_KEPT, RECORDS_KEPT, Chronicle, Record
from everstep.core.bounds import cut
from everstep.core.deciding.decision import Decision
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

FAILED = "downgrade"
"""The result of a level that failed, as long as another one follows."""

SEEN_LINES, SEEN_CHARACTERS = 4, 110
"""Of what was seen; the rest is in the Recovery, and in the history of the decision."""


def noted(known: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with what the event says of restarts."""
    match event:
        case LevelRefused():
            return _with(
                known, _record(known, event, result="quotaExceeded", ended_at=event.decision.at)
            )
        case RestartDecided():
            return _with(_ended_early(known, event), _record(known, event))
        case RestartEnded():
            return _ended(known, event)
        case BillReturned(n=n, budgets=budgets):
            record = find(known, n)
            kept = {} if record is None else record.bills
            bills = {name: units for name, units in kept.items() if name not in budgets}
            return _changed(known, n, bills=bills)
        case FirstStepSeen():
            return _first_step(known, event)
        case GivenUp():
            return _given_up(_ended_early(known, event), event)
        case _:
            return known


def of_phase(known: Chronicle, phase: str) -> tuple[Record, ...]:
    return tuple(record for record in known.records if record.phase == phase)


def executed(known: Chronicle) -> Record | None:
    """The newest restart of this phase that was carried out."""
    done = (r for r in reversed(known.records) if r.refused_by is None and _is_mine(known, r))
    return next(done, None)


def find(known: Chronicle, n: int) -> Record | None:
    return next((r for r in known.records if r.n == n and _is_mine(known, r)), None)


def _is_mine(known: Chronicle, record: Record) -> bool:
    return known.phase is not None and record.phase == known.phase.name


def _record(known: Chronicle, event: LevelRefused | RestartDecided, **said: Any) -> Record:
    decision = event.decision
    is_refused = isinstance(event, LevelRefused)
    is_new = decision.new_incident and not is_refused
    detected_s = round(max(decision.at - decision.fault.at, 0.0), 6)
    return Record(
        n=event.n,
        incident=event.incident,
        phase=known.phase.name if known.phase is not None else "",
        decision=_why(decision),
        generation_from=event.generation,
        bills=dict(decision.bills),
        # What it is about to do; the outcome says what was done.
        isolated=bool(decision.isolate) and not is_refused,
        stages_s={"detect": detected_s, "decide": 0.0} if is_new else {},
        refused_by=event.budget if isinstance(event, LevelRefused) else None,
        worker=event.worker,
        step=_step(event),
        **said,
    )


def _step(event: LevelRefused | RestartDecided) -> int | None:
    """The newest step of the run that this restart ends; None where no run was under way."""
    if isinstance(event, LevelRefused) or not event.was_running:
        return None
    return event.step if event.decision.new_incident else None


def _why(decision: Decision) -> Decision:
    """What a record keeps of a decision: why, not how. The whole one is in the plan of its Recovery."""
    return replace(
        decision,
        ladder=(),
        steps=(),
        isolate=(),
        avoid=(),
        recreate=(),
        heal=(),
        beside=(),
        later=(),
        gives_way_to=(),
        occurrences=(),
        run_end=None,
        seen=tuple(cut(line, SEEN_CHARACTERS) for line in decision.seen[:SEEN_LINES]),
        fault=replace(
            decision.fault, nodes=decision.fault.nodes[:EXAMPLES_KEPT], slots=(), message=""
        ),
    )


def _ended(known: Chronicle, event: RestartEnded) -> Chronicle:
    record = find(known, event.n)
    if record is None:
        return known
    stages = {**record.stages_s, **event.stages_s}
    known = _changed(
        known,
        event.n,
        result=event.result,
        ended_at=event.at,
        generation_to=event.generation,
        isolated=record.isolated if event.isolated is None else event.isolated,
        before=event.before,
        after=event.after,
        resume_step=event.resume_step,
        evidence=event.evidence,
        stages_s=stages,
        notes=event.notes,
        waited=event.waited,
    )
    return _with_stages(known, stages) if event.stages_s else known


def _first_step(known: Chronicle, event: FirstStepSeen) -> Chronicle:
    """Fills the last stage of the newest restart once its first step was seen."""
    newest = known.records[-1] if known.records else None
    if newest is None or not _is_mine(known, newest) or newest.generation_to != event.generation:
        return known
    ended_at = newest.ended_at or event.at
    took = {"first_step": round(event.at - ended_at, 6)}
    known = _changed(known, newest.n, stages_s={**newest.stages_s, **took})
    return _with_stages(known, took)


def _with_stages(known: Chronicle, more: Mapping[str, float]) -> Chronicle:
    if known.phase is None:
        return known
    totals = known.stages_s.get(known.phase.name, {})
    added = {**totals, **{k: round(totals.get(k, 0.0) + v, 6) for k, v in more.items()}}
    return replace(known, stages_s={**known.stages_s, known.phase.name: added})


def _ended_early(known: Chronicle, event: RestartDecided | GivenUp) -> Chronicle:
    """Whether what a restart had started was gone again before it got anywhere."""
    end = event.decision.run_end
    if not event.decision.new_incident or end is None or end.when is None:
        return known
    started = [r for r in known.records if r.generation_to == event.generation]
    for record in started:
        known = _changed(known, record.n, ended=f"ended {end.when}")
    return known


def _given_up(known: Chronicle, event: GivenUp) -> Chronicle:
    """The level that failed last was the last there was, and this is why."""
    last = executed(known)
    if event.decision.new_incident or last is None or last.result != FAILED:
        return known
    return _changed(known, last.n, result="failed", end_reason=event.decision.reason)


def _with(known: Chronicle, record: Record) -> Chronicle:
    return replace(known, records=_bounded((*known.records, record)))


def _changed(known: Chronicle, n: int, **changes: Any) -> Chronicle:
    """The chronicle with this phase's record `n` changed; one too old to be kept is left alone."""
    changed = (
        replace(r, **changes) if r.n == n and _is_mine(known, r) else r for r in known.records
    )
    return replace(known, records=_bounded(tuple(changed)))


def _bounded(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The newest records; where they say too much about places, older ones keep only the count."""
    kept: list[Record] = []
    left = CHANGES_KEPT
    for record in reversed(records[-RECORDS_KEPT:]):
        left -= len(record.after)
        kept.append(record if left >= 0 or not record.after else _without_places(record))
    return tuple(reversed(kept))


def _without_places(record: Record) -> Record:
    note = f"{len(record.after)} slots changed their place; the Recovery's own result names them"
    return replace(record, before={}, after={}, notes=(*record.notes, note))
