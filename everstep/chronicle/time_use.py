"""What the time of a job was used for: runs of all processes, gaps between them, and who caused a gap.

The report of a job and the totals of all jobs divide time by these same rules. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    paused_at: float | None = None  # an operator paused the job after it had ended
    detect_s: float = 0.0  # from the fault that ended it until the decision
    lost_steps: int | None = 0  # done again by the next run, of earlier ones too; None: unknown
    lost_s: float | None = 0.0

    @property
    def recorded_end(self) -> float:
        """Its end in the record of the restart that ended it."""
        return self.ended_at + self.detect_s

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

    recorded_end: float
    detect_s: float  # until then, from the fault: nothing was trained
    fault_class: str


def cause_of(*, decided_at: float, stages_s: Mapping[str, float | None], fault_class: str) -> Cause:
    """The cause in a record. Until a backup pod is ready, training goes on."""
    standby_s, detect_s = stages_s.get("standby"), stages_s.get("detect") or 0.0
    return Cause(
        recorded_end=decided_at + (standby_s or 0.0),
        detect_s=0.0 if standby_s else detect_s,
        fault_class=fault_class,
    )


def until_fault(run: Run, causes: Sequence[Cause]) -> Run:
    """The run until its fault: what came between fault and decision trained nothing."""
    late = next((c.detect_s for c in causes if is_close(c.recorded_end, run.ended_at)), 0.0)
    until = max(run.ended_at - late, run.training_from)
    return replace(run, ended_at=until, detect_s=max(run.ended_at - until, 0.0))


def is_close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE_S


@dataclass(slots=True)
class _Stretch:
    """Steps of a run that no later one has done again."""

    begin: int
    end: int
    s: float


def with_losses(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Each run with the steps, of it and of earlier runs of its phase, that the next one did again."""
    stretches: list[_Stretch] = []
    with_next: list[Run] = []
    for run, following in pairwise(runs):
        if run.phase == following.phase:
            with_next.append(_with_loss(run, following, stretches))
        else:
            with_next.append(run)
            stretches.clear()
    return (*with_next, *runs[len(with_next) :])


def _with_loss(run: Run, following: Run, stretches: list[_Stretch]) -> Run:
    """The run with its loss. `stretches` are those until it began, then those that the following run left.

    Three runs of a phase, with a second for each step: 0 to 100, 80 to 120 and from 60 on. The second run
    does the steps 80 to 100 of the first again: the first lost 20 steps. The third does 60 to 80 of the
    first and 80 to 120 of the second again: the second lost 60 steps, and 60 seconds.
    """
    has_steps = run.first_step_at is not None
    if not has_steps and not stretches:
        return run
    begin, reached, resumed = run.starting_step, run.step, following.starting_step
    if resumed is None or (has_steps and reached is None):
        stretches.clear()
        return replace(run, lost_steps=None, lost_s=None)
    if has_steps and begin is not None and reached is not None and reached > begin:
        stretches.append(_Stretch(begin, reached, max(run.ended_at - run.training_from, 0.0)))
    again = [_take(part, resumed) for part in stretches if part.end > resumed]
    stretches[:] = [part for part in stretches if part.begin < part.end]
    steps = sum(part.end - part.begin for part in again)
    # The time of lost steps is unknown if no stretch has them, as where the run's first step is unknown.
    lost = max(steps, reached - resumed) if has_steps and reached is not None else steps
    lost_s = sum((part.s for part in again), 0.0) if again or not lost else None
    return replace(run, lost_steps=lost, lost_s=lost_s)


def _take(part: _Stretch, resumed: int) -> _Stretch:
    """Take from this part what is done again from this step on; returns that."""
    begin = max(part.begin, resumed)
    lost_s = part.s * (part.end - begin) / (part.end - part.begin)
    again = _Stretch(begin, part.end, lost_s)
    part.end, part.s = begin, part.s - lost_s
    return again


def gaps(runs: Sequence[Run], created: float, end: float) -> tuple[Gap, ...]:
    """The time before the first run, between two and after the last one."""
    if not runs:
        return (Gap(kind="wait", began_at=created, ended_at=end),)
    first = Gap(kind="wait", began_at=created, ended_at=runs[0].training_from)
    between = (gap for run, following in pairwise(runs) for gap in gaps_between(run, following))
    last = () if runs[-1].is_open else gaps_at_end(runs[-1], end)
    return (first, *between, *last)


def gaps_between(run: Run, following: Run) -> tuple[Gap, ...]:
    kind = "down" if run.phase == following.phase else "wait"
    return _gaps_after(run, kind, following.training_from)


def gaps_at_end(run: Run, end: float) -> tuple[Gap, ...]:
    return _gaps_after(run, "down", end)


def _gaps_after(run: Run, kind: str, until: float) -> tuple[Gap, ...]:
    """The time after a run: of this kind until the job was paused, then `paused`."""
    if run.is_paused:
        return (Gap(kind=PAUSED, began_at=run.ended_at, ended_at=until),)
    if run.paused_at is None:
        return (Gap(kind=kind, began_at=run.ended_at, ended_at=until),)
    return (
        Gap(kind=kind, began_at=run.ended_at, ended_at=run.paused_at),
        Gap(kind=PAUSED, began_at=run.paused_at, ended_at=until),
    )
