"""What the time of a job was used for: runs of all processes, gaps between them, and who caused a gap.

The report of a job and the totals of all jobs divide time by these same rules. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

PAUSED = "paused"
"""`why` of a run that an operator paused begins so."""

CLOSE_S = 0.0015
"""Times are rounded to the millisecond on their way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of all processes, until they ended."""

    phase: str
    generation: int | None
    started_at: float
    ended_at: float
    first_step_at: float | None = None
    starting_step: int | None = None
    step: int | None = None
    is_open: bool = False  # still running
    is_paused: bool = False  # ended by a pause
    detect_s: float = 0.0  # from the fault that ended it until the decision
    lost_steps: int | None = 0  # done again by the next run; None: unknown
    lost_s: float | None = 0.0

    @property
    def training_from(self) -> float:
        """The first step, else the start: a script that shows no steps trains from its start on."""
        return self.started_at if self.first_step_at is None else self.first_step_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Time in which nothing trained."""

    kind: str  # wait, down, paused
    began_at: float
    ended_at: float

    @property
    def s(self) -> float:
        return max(self.ended_at - self.began_at, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What a restart record says of the end of a run."""

    decided_at: float
    detect_s: float  # from the fault to the decision
    fault_class: str

    @property
    def detected_at(self) -> float:
        return self.decided_at - self.detect_s


def until_fault(run: Run, causes: Sequence[Cause]) -> Run:
    """The run until its fault: what came between fault and decision trained nothing."""
    late = next((c.detect_s for c in causes if is_close(c.decided_at, run.ended_at)), 0.0)
    return replace(run, ended_at=max(run.ended_at - late, run.training_from), detect_s=late)


def is_close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE_S


def near(at: float, times: Iterable[float]) -> float | None:
    """The one of these times that is the same, apart from rounding."""
    return next((time for time in times if is_close(time, at)), None)


def with_losses(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Each run with the steps that the next one of its phase did again."""
    with_next = [
        _with_loss(run, following) if run.phase == following.phase else run
        for run, following in pairwise(runs)
    ]
    return (*with_next, *runs[len(with_next) :])


def _with_loss(run: Run, following: Run) -> Run:
    if run.first_step_at is None:
        return run  # it made no step
    begin, reached, resumed = run.starting_step, run.step, following.starting_step
    if reached is None or resumed is None:
        return replace(run, lost_steps=None, lost_s=None)
    lost = max(reached - resumed, 0)
    trained = max(run.ended_at - run.training_from, 0.0)
    made = reached - begin if begin is not None else None
    if lost and not made:
        return replace(run, lost_steps=lost, lost_s=None)
    share = min(lost / made, 1.0) if made and made > 0 else 0.0
    return replace(run, lost_steps=lost, lost_s=share * trained)


def gaps(runs: Sequence[Run], created: float, end: float) -> tuple[Gap, ...]:
    """The time before the first run, between two and after the last one."""
    if not runs:
        return (Gap(kind="wait", began_at=created, ended_at=end),)
    first = Gap(kind="wait", began_at=created, ended_at=runs[0].training_from)
    between = (gap(run, following) for run, following in pairwise(runs))
    last = () if runs[-1].is_open else (last_gap(runs[-1], end),)
    return (first, *between, *last)


def gap(run: Run, following: Run) -> Gap:
    kind = "down" if run.phase == following.phase else "wait"
    return Gap(
        kind=PAUSED if run.is_paused else kind,
        began_at=run.ended_at,
        ended_at=following.training_from,
    )


def last_gap(run: Run, end: float) -> Gap:
    return Gap(kind=PAUSED if run.is_paused else "down", began_at=run.ended_at, ended_at=end)
