"""What a job adds to the counters of all jobs: `Chronicle.totals`, kept up to date with each of its events.

In: a job event, after `records` and `starts` have noted it. Out: the chronicle with new totals. A restart
record is counted once its result cannot change any more; `Chronicle.settled` is the number of the newest
counted one. `time_totals` counts the time of runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everstep.chronicle.chronicle import Chronicle, JobTotals, Record
from everstep.chronicle.counters import with_stage
from everstep.chronicle.records import find, of_phase
from everstep.chronicle.time_totals import with_last_time, with_time
from everstep.core.loop.job_events import (
    FirstStepSeen,
    GivenUp,
    JobEnding,
    JobEvent,
    PhaseBegan,
    PhaseEnded,
    RestartDecided,
    RestartEnded,
)

FIRST_STEP = "first_step"


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with the totals of its job, once `records` and `starts` have noted the same event."""
    chronicle = with_time(chronicle)
    match event:
        case PhaseBegan():
            return replace(chronicle, settled=0)  # numbers count within a phase
        case RestartDecided(n=n):
            return _with_records(chronicle, (r for r in _uncounted(chronicle) if r.n < n))
        case RestartEnded(n=n, result="success"):  # any other result may still change
            return _with_records(chronicle, (r for r in _uncounted(chronicle) if r.n <= n))
        case FirstStepSeen(generation=generation):
            return _with_first_step(chronicle, generation)
        case GivenUp() | PhaseEnded():
            return _with_records(chronicle, _uncounted(chronicle))
        case JobEnding(at=at, ending=ending) if not chronicle.totals.ended:
            chronicle = with_last_time(_with_records(chronicle, _uncounted(chronicle)), at)
            return replace(chronicle, totals=replace(chronicle.totals, ended=ending))
        case _:
            return chronicle


def _uncounted(chronicle: Chronicle) -> Iterable[Record]:
    """Records of this phase that were not counted yet."""
    if chronicle.phase is None:
        return ()
    return [r for r in of_phase(chronicle, chronicle.phase.name) if r.n > chronicle.settled]


def _with_records(chronicle: Chronicle, records: Iterable[Record]) -> Chronicle:
    """Count these records."""
    totals, settled = chronicle.totals, chronicle.settled
    for record in records:
        totals, settled = _with_record(totals, record), max(settled, record.n)
    return replace(chronicle, totals=totals, settled=settled)


def _with_record(totals: JobTotals, record: Record) -> JobTotals:
    decision = record.decision
    key = f"{decision.fault.cls}/{decision.level}/{record.result}"
    restarts = {**totals.restarts, key: totals.restarts.get(key, 0) + 1}
    stages = totals.stages
    for stage, took in record.stages_s.items():
        stages = with_stage(stages, stage, took)
    return replace(totals, restarts=restarts, stages=stages)


def _with_first_step(chronicle: Chronicle, generation: int) -> Chronicle:
    """Count a first step, and how long it took after the restart that led to it.

    This stage of a restart ends after its record was counted.
    """
    chronicle = replace(chronicle, first_steps=chronicle.first_steps + 1)
    record = find(chronicle, chronicle.settled)
    if record is None or record.generation_to != generation:
        return chronicle
    took = record.stages_s.get(FIRST_STEP)
    if took is None:
        return chronicle
    stages = with_stage(chronicle.totals.stages, FIRST_STEP, took)
    return replace(chronicle, totals=replace(chronicle.totals, stages=stages))
