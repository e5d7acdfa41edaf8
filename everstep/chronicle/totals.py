"""What a job adds to the counters of all jobs, and their sum.

In: each job event, after `records` and `starts` have noted it (`with_event`). A restart record is counted
once its result cannot change any more (up to `Chronicle.settled`), a run once the next one trains or ended
(before `Chronicle.timed`). Out: the job's totals. It sends all of them with everything it publishes, and they
replace those of before (`with_report`): a repeat, a killed worker or a reset job adds nothing twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from everstep.chronicle.chronicle import Chronicle, JobTotals, Record, Start
from everstep.chronicle.records import find, of_phase
from everstep.chronicle.time_use import (
    PAUSED,
    Cause,
    Gap,
    Run,
    cause_of,
    gaps_at_end,
    gaps_between,
    is_close,
    until_fault,
    with_losses,
)
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

BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400)
"""Upper bounds of the histograms of durations: from 50 ms to hours."""

FIRST_STEP = "first_step"


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with the totals of its job, once `records` and `starts` have noted the same event."""
    chronicle = _with_time(chronicle)
    match event:
        case PhaseBegan():
            return replace(chronicle, settled=0)  # numbers count within a phase
        case RestartDecided(n=n):
            return _settled(chronicle, (r for r in _unsettled(chronicle) if r.n < n))
        case RestartEnded(n=n, result="success"):  # any other result may still change
            return _settled(chronicle, (r for r in _unsettled(chronicle) if r.n <= n))
        case FirstStepSeen(generation=generation):
            return _with_first_step(chronicle, generation)
        case GivenUp() | PhaseEnded():
            return _settled(chronicle, _unsettled(chronicle))
        case JobEnding(at=at, ending=ending) if not chronicle.totals.ended:
            chronicle = _with_last_time(_settled(chronicle, _unsettled(chronicle)), at)
            return replace(chronicle, totals=replace(chronicle.totals, ended=ending))
        case _:
            return chronicle


def _unsettled(chronicle: Chronicle) -> Iterable[Record]:
    """Records of this phase that were not counted yet."""
    if chronicle.phase is None:
        return ()
    return [r for r in of_phase(chronicle, chronicle.phase.name) if r.n > chronicle.settled]


def _settled(chronicle: Chronicle, records: Iterable[Record]) -> Chronicle:
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
        stages = _with_stage(stages, stage, took)
    return replace(totals, restarts=restarts, stages=stages)


def _with_first_step(chronicle: Chronicle, generation: int) -> Chronicle:
    """The totals with the last stage of the newest counted restart, which ended after its record did."""
    chronicle = replace(chronicle, first_steps=chronicle.first_steps + 1)
    record = find(chronicle, chronicle.settled)
    if record is None or record.generation_to != generation:
        return chronicle
    took = record.stages_s.get(FIRST_STEP)
    if took is None:
        return chronicle
    stages = _with_stage(chronicle.totals.stages, FIRST_STEP, took)
    return replace(chronicle, totals=replace(chronicle.totals, stages=stages))


Stages = Mapping[str, Mapping[int, tuple[int, float]]]
"""A histogram for each stage: index in BUCKETS_S -> how many took that long, and their seconds in all."""


def _with_stage(stages: Stages, stage: str, took: float) -> Stages:
    buckets = stages.get(stage, {})
    bucket = bisect_left(BUCKETS_S, took)
    count, total = buckets.get(bucket, (0, 0.0))
    return {**stages, stage: {**buckets, bucket: (count + 1, round(total + took, 6))}}


# -- time -----------------------------------------------------------------------------------------

NO_RECORD = "other"
"""The cause of lost time that no restart record explains: a pause, a failed job's last fault."""


def _with_time(chronicle: Chronicle) -> Chronicle:
    """Count the time of each run before a start that has trained or ended: nothing changes it any more.

    `timed` is the start of the oldest run that is not counted yet.
    """
    starts = [s for s in chronicle.starts if chronicle.timed is None or s.at >= chronicle.timed]
    if chronicle.timed is None and starts and _has_trained_or_ended(starts[0]):
        # Nothing is counted yet: begin with the wait before the first start.
        wait_s = max(_run(starts[0]).training_from - _created(chronicle), 0.0)
        chronicle = _spent(replace(chronicle, timed=starts[0].at), wait=wait_s)
    for start, following in pairwise(starts):
        if chronicle.timed == start.at and _has_trained_or_ended(following):
            run, next_run = _runs_until(chronicle, following)
            gaps = gaps_between(run, next_run)
            chronicle = _with_run(replace(chronicle, timed=following.at), run, gaps)
    return chronicle


def _runs_until(chronicle: Chronicle, last: Start) -> tuple[Run, Run]:
    """The run before `last` and that of `last`, with the steps that the latter did again."""
    runs = [until_fault(_run(start), _causes(chronicle)) for start in chronicle.starts]
    at = chronicle.starts.index(last)
    with_loss = with_losses([*runs[:at], _run(last)])
    return with_loss[-2], with_loss[-1]


def _with_last_time(chronicle: Chronicle, at: float) -> Chronicle:
    """Count the time of the last run and after it, until the last phase ended."""
    span = chronicle.phases.get(chronicle.phase.name) if chronicle.phase is not None else None
    end = at if span is None or span.ended_at is None else span.ended_at
    if not chronicle.starts:
        return _spent(chronicle, wait=max(end - _created(chronicle), 0.0))
    run = until_fault(_run(chronicle.starts[-1]), _causes(chronicle))
    return _with_run(chronicle, run, gaps_at_end(run, end))


def _created(chronicle: Chronicle) -> float:
    return chronicle.starts[0].at if chronicle.created_at is None else chronicle.created_at


def _has_trained_or_ended(start: Start) -> bool:
    return start.first_step_at is not None or start.ended_at is not None


def _run(start: Start) -> Run:
    return Run(
        phase=start.phase,
        generation=start.generation,
        started_at=start.at,
        ended_at=start.at if start.ended_at is None else start.ended_at,
        first_step_at=start.first_step_at,
        starting_step=start.starting_step,
        step=start.step,
        is_paused=start.why.startswith(PAUSED),
        paused_at=start.paused_at,
    )


def _causes(chronicle: Chronicle) -> tuple[Cause, ...]:
    return tuple(
        cause_of(
            decided_at=record.decision.at,
            stages_s=record.stages_s,
            fault_class=str(record.decision.fault.cls),
        )
        for record in chronicle.records
    )


def _with_run(chronicle: Chronicle, run: Run, after: tuple[Gap, ...]) -> Chronicle:
    """Count the time of a run and of the gaps after it. A run may lose more than its own steps took."""
    lost_s = run.lost_s or 0.0
    training_s = max(run.ended_at - run.training_from, 0.0) - lost_s
    for gap in after:
        chronicle = _spent(chronicle, **{gap.kind: gap.s})
    chronicle = _spent(chronicle, training=training_s, lost=lost_s)
    down_s = sum(gap.s for gap in after if gap.kind == "down")
    # A pause has no cause, although a restart may follow it.
    is_down = any(gap.kind == "down" for gap in after)
    causes = [c for c in _causes(chronicle) if is_close(c.recorded_end, run.recorded_end)]
    cause = causes[0].fault_class if is_down and causes else NO_RECORD
    lost = {f"{cause}/{kind}": s for kind, s in (("down", down_s), ("again", lost_s)) if s}
    before = chronicle.totals
    totals = replace(
        before,
        lost_s=_sums(before.lost_s, lost),
        lost_steps=_known_sum(before.lost_steps, run.lost_steps),
    )
    return replace(chronicle, totals=totals)


def _known_sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _spent(chronicle: Chronicle, **uses_s: float) -> Chronicle:
    time_s = _sums(chronicle.totals.time_s, {use: s for use, s in uses_s.items() if s})
    return replace(chronicle, totals=replace(chronicle.totals, time_s=time_s))


Number = TypeVar("Number", int, float)


def _sums(one: Mapping[str, Number], other: Mapping[str, Number]) -> dict[str, Number]:
    keys = {**one, **other}
    return {key: one.get(key, 0) + other.get(key, 0) for key in keys}


# -- the sum over all jobs ------------------------------------------------------------------------

ENDED_KEPT = 100
"""So many ended jobs are kept apart: of one that is reset the totals are replaced, not added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The totals of one job, as it sent them."""

    key: str  # job and first run: an ID may be used again
    at: float  # by the clock of the job's cluster
    totals: JobTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """The totals of all jobs of a cluster, since its first one."""

    jobs: Mapping[str, JobReport] = field(default_factory=dict)  # the newest last
    earlier: JobTotals = field(default_factory=JobTotals)  # of ended jobs that are not kept apart
    earlier_ends: Mapping[str, int] = field(default_factory=dict)  # how these ended


def with_report(fleet: FleetTotals, report: JobReport) -> FleetTotals:
    """The totals with what a job sent; what arrives late is older than what is known and changes nothing."""
    before = fleet.jobs.get(report.key)
    if before is not None and before.at > report.at:
        return fleet
    other_jobs = {key: job for key, job in fleet.jobs.items() if key != report.key}
    return _bounded(replace(fleet, jobs={**other_jobs, report.key: report}))


def _bounded(fleet: FleetTotals) -> FleetTotals:
    ended = [key for key, job in fleet.jobs.items() if job.totals.ended]
    for key in ended[: max(len(ended) - ENDED_KEPT, 0)]:
        totals = fleet.jobs[key].totals
        count = fleet.earlier_ends.get(totals.ended, 0)
        fleet = replace(
            fleet,
            jobs={other: job for other, job in fleet.jobs.items() if other != key},
            earlier=added(fleet.earlier, totals),
            earlier_ends={**fleet.earlier_ends, totals.ended: count + 1},
        )
    return fleet


def summed(fleet: FleetTotals) -> JobTotals:
    """The totals of all jobs that ever were."""
    total = fleet.earlier
    for job in fleet.jobs.values():
        total = added(total, job.totals)
    return replace(total, ended="")


def ends(fleet: FleetTotals) -> dict[str, int]:
    """The number of ended jobs by how they ended."""
    counts = dict(fleet.earlier_ends)
    for job in fleet.jobs.values():
        if job.totals.ended:
            counts[job.totals.ended] = counts.get(job.totals.ended, 0) + 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSum:
    """The totals of all jobs, as they are exported."""

    totals: JobTotals
    ends: Mapping[str, int]


def added(one: JobTotals, other: JobTotals) -> JobTotals:
    stages = {
        stage: _added(one.stages.get(stage, {}), other.stages.get(stage, {}))
        for stage in {**one.stages, **other.stages}
    }
    return JobTotals(
        restarts=_sums(one.restarts, other.restarts),
        stages=stages,
        time_s=_sums(one.time_s, other.time_s),
        lost_s=_sums(one.lost_s, other.lost_s),
        lost_steps=_known_sum(one.lost_steps, other.lost_steps),
        budgets=_sums(one.budgets, other.budgets),
    )


def _added(
    one: Mapping[int, tuple[int, float]], other: Mapping[int, tuple[int, float]]
) -> dict[int, tuple[int, float]]:
    nothing = (0, 0.0)
    return {
        bucket: (
            one.get(bucket, nothing)[0] + other.get(bucket, nothing)[0],
            one.get(bucket, nothing)[1] + other.get(bucket, nothing)[1],
        )
        for bucket in {**one, **other}
    }
