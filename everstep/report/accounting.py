"""Where the time of a job went: waiting, starting, training, down, paused, and work done twice.

Every second between the job's creation and its end belongs to exactly one of these, so that they add
up. The input is what a job answers: its runs (starts of all processes) and its restart records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from everstep.chronicle.time_use import (
    PAUSED,
    Cause,
    Gap,
    Run,
    cause_of,
    gaps,
    is_close,
    until_fault,
    with_losses,
)
from everstep.chronicle.views import STAGES

Value = Mapping[str, Any]

STANDBY = "standby"
"""The stage in which training goes on."""
UNTIL_START = (STANDBY, "space", "stop", "heal", "place", "start")
"""The stages between a decision and the start of all processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A restart record, with what it cost."""

    record: Value
    down_s: float = 0.0  # from the fault to the next first step; of one fault, in its first record
    lost_steps: int | None = 0
    lost_s: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The time of a job. `total_s` is the sum of wait, training, down, lost and paused."""

    total_s: float = 0.0
    wait_s: float = 0.0  # until the first start of all processes, and between phases
    training_s: float = 0.0  # steps that count
    down_s: float = 0.0
    lost_s: float = 0.0  # steps that were done again
    paused_s: float = 0.0
    has_unknown_loss: bool = False
    stages_s: Mapping[str, float] = field(default_factory=dict)  # of `down_s`, with `other`
    runs: tuple[Run, ...] = ()
    restarts: tuple[Restart, ...] = ()

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio, from the first start on; None before it."""
        since_start = self.total_s - self.wait_s
        return self.training_s / since_start if since_start > 0 else None


def seconds(text: str | None) -> float | None:
    """RFC 3339 as seconds since 1970."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def account(report: Value, records: Sequence[Value], *, now: float) -> Account:
    """Divide the time of a job. `records` may be more than the report holds; `now` ends an open job."""
    created = seconds(report.get("created_at"))
    end = _end(report, now)
    runs = with_losses(_runs(report, records, end))
    if created is None:
        created = runs[0].started_at if runs else end
    all_gaps = gaps(runs, created, end)
    down = sum(gap.s for gap in all_gaps if gap.kind == "down")
    paused = sum(gap.s for gap in all_gaps if gap.kind == PAUSED)
    wait = sum(gap.s for gap in all_gaps if gap.kind == "wait")
    total = max(end - created, 0.0)
    lost = sum(run.lost_s or 0.0 for run in runs)
    return Account(
        total_s=total,
        wait_s=wait,
        down_s=down,
        paused_s=paused,
        lost_s=lost,
        training_s=max(total - wait - down - paused - lost, 0.0),
        has_unknown_loss=any(run.lost_s is None for run in runs),
        stages_s=_stages(records, down),
        runs=runs,
        restarts=_restarts(records, runs, all_gaps),
    )


def _end(report: Value, now: float) -> float:
    """The end of the last phase; the time to clear away after it is not counted."""
    if (ended := seconds(report.get("ended_at"))) is None:
        return now
    phases: Sequence[Value] = report.get("phases", ())
    return (seconds(phases[-1].get("ended_at")) if phases else None) or ended


# -- runs -----------------------------------------------------------------------------------------


def _runs(report: Value, records: Sequence[Value], end: float) -> tuple[Run, ...]:
    """The runs that the job still holds, before them those that only its records show."""
    runs = [_run(row, end) for row in report.get("runs", ())]
    first = runs[0].started_at if runs else end
    started = seconds(report.get("started_at"))
    older = _runs_of_records(records, started, before=first)
    causes = _causes(records)
    return tuple(until_fault(run, causes) for run in (*older, *runs))


def _causes(records: Sequence[Value]) -> tuple[Cause, ...]:
    return tuple(
        cause_of(
            decided_at=seconds(record["at"]) or 0.0,
            stages_s=record["stages_s"],
            fault_class=record["fault"]["class"],
        )
        for record in records
    )


def _run(row: Value, end: float) -> Run:
    ended = seconds(row["ended_at"])
    return Run(
        phase=row["phase"],
        generation=row["generation"],
        started_at=seconds(row["started_at"]) or end,
        first_step_at=seconds(row["first_step_at"]),
        ended_at=end if ended is None else ended,
        starting_step=row["starting_step"],
        step=row["step"],
        is_open=ended is None,
        is_paused=(row["why"] or "").startswith(PAUSED),
        paused_at=seconds(row.get("paused_at")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A start of all processes, where a run begins: the first of the job, or one that a restart led to."""

    at: float
    first_step_at: float | None
    starting_step: int | None
    generation: int | None


def _runs_of_records(
    records: Sequence[Value], started: float | None, *, before: float
) -> tuple[Run, ...]:
    """Runs that are older than those a job keeps: each from one start to the restart that ended it.

    The job starts at `started`. A restart that succeeded ends a run and leads to the next start: restarts 1
    and 2 show the runs from the job's start to 1, and from the start after 1 to 2.
    """
    runs: list[Run] = []
    start = None
    if started is not None:
        start = _Start(at=started, first_step_at=started, starting_step=0, generation=None)
    for record in records:
        decided_at = seconds(record["at"])
        if decided_at is None or decided_at >= before or record["recover_result"] != "success":
            continue
        if start is not None:
            runs.append(_run_between(start, record, decided_at))
        start = _start_after(record, decided_at)
    return tuple(run for run in runs if run.started_at < before)


def _run_between(start: _Start, record: Value, decided_at: float) -> Run:
    """The run from this start until the restart of the record. Until a backup pod is ready it goes on."""
    return Run(
        phase=record["phase"],
        generation=start.generation,
        started_at=start.at,
        first_step_at=start.first_step_at,
        ended_at=decided_at + (record["stages_s"].get(STANDBY) or 0.0),
        starting_step=start.starting_step,
        step=record.get("step"),
    )


def _start_after(record: Value, decided_at: float) -> _Start:
    """The start that a restart led to."""
    stages = record["stages_s"]
    at = decided_at + sum(stages.get(name) or 0.0 for name in UNTIL_START)
    first_step_s = stages.get("first_step")
    return _Start(
        at=at,
        first_step_at=None if first_step_s is None else at + first_step_s,
        starting_step=record["resume_step"],
        generation=record["generation"]["to"],
    )


# -- stages ---------------------------------------------------------------------------------------


def _stages(records: Sequence[Value], down_s: float) -> dict[str, float]:
    """The down time by stage, as they follow each other; what none covers is `other`: the sum is `down_s`.

    Times have milliseconds. Less than one is what remains of rounding.
    """
    totals = {
        name: took
        for name in STAGES
        if name != STANDBY and (took := sum(r["stages_s"].get(name) or 0.0 for r in records))
    }
    named_s = sum(totals.values())
    if named_s > down_s:  # stages of an incident that is not over, or that overlapped
        scale = down_s / named_s if named_s else 0.0
        return {name: took * scale for name, took in totals.items()}
    other_s = down_s - named_s
    return {**totals, "other": other_s} if round(other_s, 3) else totals


# -- what each restart cost -----------------------------------------------------------------------


def _restarts(
    records: Sequence[Value], runs: Sequence[Run], all_gaps: Sequence[Gap]
) -> tuple[Restart, ...]:
    """Each record, with the gap that began at its fault and the work that was lost by it.

    An incident may have several gaps, if a start within it ended too. Of several records of one fault only
    the first has the gap.
    """
    restarts: list[Restart] = []
    # A gap begins where its run ended. A record has the time at which that end was detected.
    down_s = {gap.began_at: gap.s for gap in all_gaps if gap.kind == "down"}
    unclaimed = [run for run in runs if run.ended_at in down_s]
    for record, cause in zip(records, _causes(records), strict=True):
        ends = (r for r in unclaimed if is_close(r.recorded_end, cause.recorded_end))
        run = next(ends, None)
        if run is None:
            restarts.append(Restart(record=record))
            continue
        unclaimed.remove(run)
        gap_s = down_s[run.ended_at]
        restarts.append(
            Restart(record=record, down_s=gap_s, lost_steps=run.lost_steps, lost_s=run.lost_s)
        )
    return tuple(restarts)
