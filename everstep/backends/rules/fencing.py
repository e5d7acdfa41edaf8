"""The fence: written once per generation, holds once every older process is known to have ended.

Processes that are cut off end when they read it, or after `fence_s` without it. This cannot be seen, so after
a margin it is assumed. If the order names no folder, no time makes the fence hold: every known pod must be
proven. Unknown ones cannot be, and a wait for them would never end.
"""

from __future__ import annotations

from collections.abc import Sequence

from everstep.core.waits import WaitKind
from everstep.core.world import FenceOrder, FenceState


def has_folder(order: FenceOrder) -> bool:
    """Whether the order names a folder to write the fence to."""
    return order.run.model_dir is not None or order.run.checkpoints_path is not None


def to_be_written(order: FenceOrder) -> FenceState:
    """The answer until the agent of the lowest slot has written the fence."""
    return FenceState(done=False, wait=WaitKind.FENCE.of(order.lowest_slot))


def newer_on_storage(newer: int) -> FenceState:
    """The answer if this newer generation is on storage: waiting would not help."""
    return FenceState(done=False, newer=newer)


def holds_at(written_at: float | None, *, fence_s: float, margin_s: float) -> float | None:
    """When it holds without proof; None: never, as it was written nowhere."""
    return None if written_at is None else round(written_at + fence_s + margin_s, 6)


def state(
    unproven: Sequence[str], *, may_have_unknown_pods: bool, holds_at: float | None, now: float
) -> FenceState:
    """Whether it holds; `unproven` are the older pods that are not proven to have ended."""
    if holds_at is not None and now >= holds_at:
        return FenceState(done=True)
    if unproven:
        return FenceState(done=False, wait=WaitKind.PROOF.of(unproven[0]))
    if may_have_unknown_pods and holds_at is not None:
        # Only the fence's time can make it hold.
        return FenceState(done=False, wait=WaitKind.UNKNOWN_PODS.of())
    return FenceState(done=True)
