"""Progress: the furthest point a job ever reached. Only what lies beyond it ends a row of failures.

A newer durable checkpoint; where none is configured, a newer step than ever before; where nothing was
ever seen, enough healthy running. Not knowing is not zero: it changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from everstep.core.state import JobState, Mark, with_ledger


def progressed(state: JobState) -> JobState:
    """The state after what is now known of steps and checkpoints, with its rows ended if it moved."""
    mark = furthest(state)
    if mark == state.ledger.mark:
        return state
    return with_ledger(state, mark=mark, series={}, no_progress=0, spacing=0, escalation={})


def furthest(state: JobState) -> Mark:
    mark = state.ledger.mark
    if shows_checkpoints(state):
        return replace(mark, checkpoint=_newer(mark.checkpoint, state.checkpoint_step))
    if state.step is not None or mark.step is not None:
        return replace(mark, step=_newer(mark.step, state.step))
    if _is_healthy(state):
        return replace(mark, healthy_generation=state.generation)
    return mark


def shows_checkpoints(state: JobState) -> bool:
    """Whether only checkpoints count, because they are configured or the policy wants it so."""
    return state.phase.checkpoints_path is not None or state.phase.policy.only_checkpoints


def needs_time(state: JobState) -> bool:
    """Whether healthy running is all that can show progress: nothing else was ever seen."""
    return not shows_checkpoints(state) and state.step is None and state.ledger.mark.step is None


def _newer(old: int | None, new: int | None) -> int | None:
    return new if old is None or (new is not None and new > old) else old


def _is_healthy(state: JobState) -> bool:
    since = state.running_since
    return since is not None and state.now - since >= state.phase.limits.healthy_s


def starting_mark(resume_step: int | None, mark: Mark) -> Mark:
    """What a resumed job begins from: the checkpoint it found is not progress of its own."""
    return replace(mark, checkpoint=_newer(mark.checkpoint, resume_step))
