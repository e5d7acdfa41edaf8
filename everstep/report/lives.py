"""The lives of a job's ID in its report: what became of each, and which steps a later life did again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from everstep.chronicle.chronicle import STARTS_KEPT
from everstep.chronicle.time_use import Run, with_losses
from everstep.report.accounting import account
from everstep.report.sentences import count

Value = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSource:
    """One life of an ID: its number, its status and its JobReport, which has no `runs` if it left none."""

    number: int
    status: Value
    report: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberedRun:
    """A run, and the place of its life among all."""

    life: int
    run: Run

    @property
    def shows_steps(self) -> bool:
        return self.run.first_step_at is not None or self.run.step is not None


def life_rows(lives: Sequence[LifeSource], *, now: float) -> list[dict[str, Any]]:
    """A row for each life, oldest first. `lost_steps` are its steps that later lives did again."""
    runs = [_runs(life, now) for life in lives]
    losses = _losses(lives, runs)
    return [_row(*each) for each in zip(lives, runs, losses, strict=True)]


def _row(life: LifeSource, runs: Sequence[Run], lost: int | None) -> dict[str, Any]:
    is_whole = 0 < len(runs) < STARTS_KEPT
    return {
        "life": life.number,
        "began_at": life.report.get("created_at"),
        "ended_at": life.report.get("ended_at"),
        "state": life.status["state"],
        "reason": life.report.get("reason") or life.status.get("reason"),
        "restarts": life.status.get("restarts") or 0,
        "first_step": runs[0].starting_step if is_whole else None,
        "last_step": life.status.get("step"),
        "checkpoint_step": life.status.get("checkpoint_step"),
        "lost_steps": lost,
    }


def _runs(life: LifeSource, now: float) -> tuple[Run, ...]:
    """The runs of a life. Of one without a report a single run, with the newest step that the server has."""
    if "runs" in life.report:
        return account(life.report, (), now=now).runs
    phase, step = life.status.get("phase"), life.status.get("step")
    if phase is None:
        return ()
    first_step_at = None if step is None else now
    return (
        Run(
            phase=phase,
            generation=None,
            started_at=now,
            first_step_at=first_step_at,
            ended_at=now,
            step=step,
        ),
    )


def _losses(lives: Sequence[LifeSource], runs: Sequence[Sequence[Run]]) -> list[int | None]:
    """The steps of each life that a later one did again; None: unknown. The newest life has lost none."""
    numbered = [
        _NumberedRun(life=at, run=run) for at, of_life in enumerate(runs) for run in of_life
    ]
    losses: list[int | None] = [0] * len(lives)
    for phase in dict.fromkeys(each.run.phase for each in numbered):
        of_phase = [each for each in numbered if each.run.phase == phase]
        for life, lost in _losses_of_phase(of_phase):
            losses[life] = _sum(losses[life], lost)
    for life, (_, following) in enumerate(pairwise(runs)):
        if _has_unknown_steps(lives[life], runs[life]) or len(following) >= STARTS_KEPT:
            losses[life] = None
    return losses


def _losses_of_phase(of_phase: Sequence[_NumberedRun]) -> list[tuple[int, int | None]]:
    """The loss of each life whose last run in the phase was followed by a run of another life."""
    show_steps = {each.life for each in of_phase if each.shows_steps}
    with_lost = with_losses([each.run for each in of_phase])
    return [
        (one.life, run.lost_steps if {one.life, following.life} & show_steps else None)
        for (one, following), run in zip(pairwise(of_phase), with_lost, strict=False)
        if one.life != following.life
    ]


def _has_unknown_steps(life: LifeSource, runs: Sequence[Run]) -> bool:
    """Whether a life without a report had a phase, and the server no step of it."""
    return "runs" not in life.report and bool(runs) and runs[0].step is None


def _sum(*parts: int | None) -> int | None:
    numbers = [part for part in parts if part is not None]
    return sum(numbers) if len(numbers) == len(parts) else None


def lives_sentence(rows: Sequence[Value]) -> str | None:
    """What came before the newest life, in one sentence; None for a job that was submitted once."""
    earlier = rows[:-1]
    if not earlier:
        return None
    restarts = sum(row["restarts"] for row in earlier)
    came = f"{_lives(len(earlier))} of this ID came before"
    steps = _steps([row["lost_steps"] for row in earlier])
    return f"{came}, with {count(restarts, 'restart')}; later lives did {steps} again."


def _steps(losses: Sequence[int | None]) -> str:
    total = sum(lost or 0 for lost in losses)
    if None in losses:
        return f"at least {count(total, 'step')}" if total else "an unknown number of steps"
    return count(total, "step") if total else "no steps"


def _lives(n: int) -> str:
    return "1 life" if n == 1 else f"{n} lives"
