"""What the time of a job was used for, added to its totals: waiting, training, down, lost, paused.

A run and the gap after it are counted once the next run trains or ended (`with_time`), the last run when the
job ends (`with_last_time`). `time_use` divides the time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from everstep.chronicle.chronicle import Chronicle, Start
from everstep.chronicle.counters import known_sum, sums
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

NO_RECORD = "other"
"""The cause of lost time that no restart record explains: a pause, a failed job's last fault."""


def with_time(chronicle: Chronicle) -> Chronicle:
    """Count the time of each run whose next run has trained or ended: nothing changes it any more.

    `Chronicle.timed` is the start of the oldest run that is not counted yet. Of runs 1, 2 and 3, once run 2
    trains, it is the start of run 2; once run 3 trains, that of run 3.
    """
    starts = [s for s in chronicle.starts if chronicle.timed is None or s.at >= chronicle.timed]
    if chronicle.timed is None and starts and _has_trained_or_ended(starts[0]):
        # Nothing is counted yet: begin with the wait before the first start.
        wait_s = max(_run(starts[0]).training_from - _created_at(chronicle), 0.0)
        chronicle = _with_uses(replace(chronicle, timed=starts[0].at), wait=wait_s)
    for start, following in pairwise(starts):
        if chronicle.timed == start.at and _has_trained_or_ended(following):
            run, next_run = _run_and_next(chronicle, following)
            gaps = gaps_between(run, next_run)
            chronicle = _with_run(replace(chronicle, timed=following.at), run, gaps)
    return chronicle


def _run_and_next(chronicle: Chronicle, following: Start) -> tuple[Run, Run]:
    """The run before `following`, with the steps that the latter did again; and that of `following`."""
    at = chronicle.starts.index(following)
    causes = _causes(chronicle)
    runs = [until_fault(_run(start), causes) for start in chronicle.starts[:at]]
    *_, run, next_run = with_losses([*runs, _run(following)])
    return run, next_run


def with_last_time(chronicle: Chronicle, at: float) -> Chronicle:
    """Count the time of the last run and after it, until the last phase ended."""
    span = chronicle.phases.get(chronicle.phase.name) if chronicle.phase is not None else None
    end = at if span is None or span.ended_at is None else span.ended_at
    if not chronicle.starts:
        return _with_uses(chronicle, wait=max(end - _created_at(chronicle), 0.0))
    run = until_fault(_run(chronicle.starts[-1]), _causes(chronicle))
    return _with_run(chronicle, run, gaps_at_end(run, end))


def _created_at(chronicle: Chronicle) -> float:
    return chronicle.starts[0].at if chronicle.created_at is None else chronicle.created_at


def _has_trained_or_ended(start: Start) -> bool:
    return start.first_step_at is not None or start.ended_at is not None


def _run(start: Start) -> Run:
    """The run of this start. One that goes on has no length: only its beginning is used."""
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
    """Count the time of a run and of the gaps after it.

    A run that loses steps of earlier runs too may add negative training: it takes back what they have added.
    """
    lost_s = run.lost_s or 0.0
    training_s = max(run.ended_at - run.training_from, 0.0) - lost_s
    for gap in after:
        chronicle = _with_uses(chronicle, **{gap.kind: gap.s})
    chronicle = _with_uses(chronicle, training=training_s, lost=lost_s)
    down = [gap.s for gap in after if gap.kind == "down"]
    # Without a gap `down` the run was paused: no fault ended it, although a restart may follow.
    cause = _cause_of_end(chronicle, run) if down else NO_RECORD
    lost_by_cause = {
        f"{cause}/{kind}": s for kind, s in (("down", sum(down)), ("again", lost_s)) if s
    }
    before = chronicle.totals
    totals = replace(
        before,
        lost_s=sums(before.lost_s, lost_by_cause),
        lost_steps=known_sum(before.lost_steps, run.lost_steps),
    )
    return replace(chronicle, totals=totals)


def _cause_of_end(chronicle: Chronicle, run: Run) -> str:
    """The class of the fault that ended the run."""
    ends = (c for c in _causes(chronicle) if is_close(c.recorded_end, run.recorded_end))
    return next((cause.fault_class for cause in ends), NO_RECORD)


def _with_uses(chronicle: Chronicle, **uses_s: float) -> Chronicle:
    """Add these seconds to those of each use: wait, training, down, lost, paused."""
    time_s = sums(chronicle.totals.time_s, {use: s for use, s in uses_s.items() if s})
    return replace(chronicle, totals=replace(chronicle.totals, time_s=time_s))
