"""Progress: whether a job got beyond its mark. It resets the counts of restarts in a row without progress.

The first kind of sign that was ever seen counts, in this order: checkpoints with a number, steps, checkpoints
that only their time orders (these may be one and the same, written again), healthy running for long enough.
An unknown value changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from everstep.core.deciding.decision import RollbackCount
from everstep.core.loop.job_events import Progressed
from everstep.core.state import JobState, Ledger, ProgressMark, happened, with_ledger
from everstep.core.world import Checkpoint, PodView
from everstep.protocol import rank_memory

T = TypeVar("T", int, float)

STEPS_FURTHER = 10
"""Steps in memory that count as progress: a run that dies at each step shall not go on as it is for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a generation is."""

    generation: int
    saved: Checkpoint | None = None
    step: int | None = None
    lived_s: float | None = None  # from the start to the last sign of life: silence is not health


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What a job has to get beyond, and what counts for it."""

    mark: ProgressMark
    healthy_s: float
    only_checkpoints: bool = False  # neither steps nor healthy running count

    def furthest(self, reached: Reached) -> ProgressMark:
        """The mark after this; the mark itself if nothing of it lies beyond."""
        mark = self.mark
        number = None if reached.saved is None else reached.saved.order_number
        saved_at = None if reached.saved is None else reached.saved.at
        if _is_any_seen(mark.checkpoint, number):
            return replace(mark, checkpoint=_newer(mark.checkpoint, number))
        if not self.only_checkpoints and _is_any_seen(mark.step, reached.step):
            return replace(mark, step=_newer(mark.step, reached.step))
        if self.only_checkpoints or _is_any_seen(mark.saved_at, saved_at):
            return replace(mark, saved_at=_newer(mark.saved_at, saved_at))
        if reached.lived_s is not None and reached.lived_s >= self.healthy_s:
            return replace(mark, healthy_generation=reached.generation)
        return mark


def _is_any_seen(*values: float | None) -> bool:
    return any(value is not None for value in values)


def _newer(old: T | None, new: T | None) -> T | None:
    return new if old is None or (new is not None and new > old) else old


def yardstick(state: JobState) -> Yardstick:
    phase = state.phase
    return Yardstick(
        mark=state.ledger.mark,
        healthy_s=phase.limits.healthy_s,
        only_checkpoints=phase.policy.only_checkpoints,
    )


def reached(state: JobState) -> Reached:
    return Reached(
        generation=state.generation,
        saved=state.saved,
        step=state.step,
        lived_s=lived_s(state.running_since, state.alive_until),
    )


def lived_s(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else until - since


def progressed(state: JobState) -> JobState:
    """The state with its mark moved to what it has reached. If that moved, all counts in a row are reset."""
    measure = yardstick(state)
    mark = measure.furthest(reached(state))
    if mark == state.ledger.mark:
        return state if measure.only_checkpoints else _remembered(state)
    counts = {
        "series": {},
        "no_progress": 0,
        "spacing": 0,
        "escalation": {},
        "by_node": {},
        "early": 0,
    }
    reset = with_ledger(state, mark=mark, last_end=None, rollbacks=RollbackCount(), **counts)
    return _with_event(state, reset)


def _remembered(state: JobState) -> JobState:
    """The state after progress that only memory holds: the restarts before it were not in vain.

    It is lost with the pods, so series, suspicions and rollbacks end with a checkpoint alone. So do
    the counts of nodes: a job would never leave a sick node that lets its ranks make a few steps each time.
    """
    mark, newest = state.ledger.mark, _step_in_memory(state)
    if newest is None or newest < (mark.remembered or 0) + STEPS_FURTHER:
        return state
    mark = replace(mark, remembered=newest)
    return _with_event(
        state, with_ledger(state, mark=mark, no_progress=0, spacing=0, escalation={})
    )


def _step_in_memory(state: JobState) -> int | None:
    """The newest step that a fault of one rank does not lose: of snapshots, or of ranks that outlive it."""
    step = state.step if rank_memory.REBUILD in state.can else None
    return _newer(state.remembered, step)


def _with_event(before: JobState, after: JobState) -> JobState:
    """`after`, with an event if its count of restarts without progress fell."""
    was, now = before.ledger.no_progress, after.ledger.no_progress
    if now >= was:
        return after
    old, new = before.ledger.mark, after.ledger.mark
    is_by_checkpoint = (old.step, old.remembered) == (new.step, new.remembered)
    progress = Progressed(
        at=after.now,
        saved=after.saved if is_by_checkpoint else None,
        step=after.step,
        before=was,
        after=now,
    )
    return happened(after, progress)


def found_further(state: JobState, before: ProgressMark) -> JobState:
    """The state after a restart that may have found a checkpoint newer than any observed one.

    `before`: the mark before it. If it moved, the last run had progressed: of all counts in a row, only this
    restart is left.
    """
    ledger, mark = state.ledger, state.ledger.mark
    is_by_steps = mark.checkpoint is None and mark.step is not None
    if mark == before or is_by_steps:
        return state
    reset = with_ledger(
        state,
        series={name: 1 for name, count in ledger.series.items() if count},
        no_progress=min(ledger.no_progress, 1),
        spacing=min(ledger.spacing, 1),
        escalation=dict.fromkeys(ledger.escalation, 1),
        by_node=dict.fromkeys(ledger.by_node, 1),
        rollbacks=RollbackCount(),
    )
    return _with_event(state, reset)


def step_of(pods: tuple[PodView, ...]) -> int | None:
    """The step that all pods have completed; while some report none, the furthest reported one."""
    steps = [pod.run.step for pod in pods if pod.run.step is not None]
    return min(steps) if len(steps) == len(pods) and steps else max(steps, default=None)


def first_step_at(pods: tuple[PodView, ...]) -> float | None:
    """When the last slot made its first step of this generation, by what pods report.

    In many scripts rank 0 alone prints. Once a slot has made another step, a slot that showed none yet is not
    waited for: a collective step is one of all ranks.
    """
    stepping = [p for p in pods if p.run.first_step_at is not None]
    goes_on = any((p.run.step_at or 0.0) > (p.run.first_step_at or 0.0) for p in stepping)
    if not stepping or not (goes_on or len(stepping) == len(pods)):
        return None
    return max(p.run.first_step_at or 0.0 for p in stepping)


def is_awaited(ledger: Ledger) -> bool:
    """Whether progress would reset any count."""
    counted = (ledger.series, ledger.no_progress, ledger.spacing, ledger.escalation, ledger.by_node)
    return any((*counted, ledger.rollbacks.times))


def is_last_run(state: JobState) -> bool:
    """Whether a failure ends the phase, unless a checkpoint was saved that is not observed yet."""
    policy, limit = state.phase.policy, state.phase.policy.no_progress_restarts
    is_in_vain = limit is not None and state.ledger.no_progress >= limit
    return is_in_vain or (policy.needs_checkpoint and state.saved is None)


def is_at_last_step(state: JobState) -> bool:
    """Whether its training is known to be over."""
    last, saved = state.phase.last_step, state.checkpoint_step
    return last is not None and saved is not None and saved >= last


def starting_mark(resume: Checkpoint | None, mark: ProgressMark) -> ProgressMark:
    """The mark of a run that resumes: the checkpoint that it begins with is not progress of its own."""
    if resume is None:
        return mark
    if resume.order_number is None:
        return replace(mark, saved_at=_newer(mark.saved_at, resume.at))
    return replace(mark, checkpoint=_newer(mark.checkpoint, resume.order_number))
