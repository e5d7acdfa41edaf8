"""The fence: written once per generation, holds once every older process is known to have ended.

Processes that can read the fence stop within `warden_s` of the write. Those that are cut off stop by
themselves after `fence_s`; nobody sees it, so after a margin it is taken for granted. Where there is
nothing to write to, only proof counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from everstep.backends.base import UNKNOWN_PODS
from everstep.backends.fake import pods, processes
from everstep.backends.fake.model import Fence, Job, Pod
from everstep.backends.fake.state import State
from everstep.core.world import FenceOrder, FenceState


def ensure(state: State, job: Job, order: FenceOrder) -> FenceState:
    fence = job.fence
    is_new = fence is None or fence.generation != order.generation
    if fence is None or is_new:
        if job.unwritable is not None and _has_storage(order):
            return FenceState.refused(job.unwritable.message)
        if wait := _cannot_write(job, order):
            return FenceState(done=False, waiting_for=wait)
        fence = job.fence = _write(state, job, order)
    wait = "" if fence.is_proven else _open(state, job, fence)
    if wait and is_new:
        _set_timers(state, job, fence)
    if not wait:
        job.is_known = True
        _close(fence)
    return FenceState(done=not wait, waiting_for=wait)


def _close(fence: Fence) -> None:
    """It holds, and will not be asked again."""
    fence.is_proven = True
    for timer in fence.timers:
        timer.cancel()


def _has_storage(order: FenceOrder) -> bool:
    return order.model_dir is not None or order.checkpoints_path is not None


def _cannot_write(job: Job, order: FenceOrder) -> str:
    """What keeps the fence from being written; nothing if there is nowhere to write it."""
    if not _has_storage(order):
        return ""
    pod = job.pods.get(order.lowest_slot)
    if pod is None or pod.is_lost or not pod.node.answers:
        return f"slot {order.lowest_slot} to write the fence"
    return ""


def _write(state: State, job: Job, order: FenceOrder) -> Fence:
    job.checkpoints_path = order.checkpoints_path or job.checkpoints_path
    if not _has_storage(order):
        return Fence(generation=order.generation, written_at=None)
    for path in (order.model_dir, order.checkpoints_path):
        if path is not None:
            state.storage.fence(path, order.generation)
    state.note(f"fence {job.id} g{order.generation}")
    return Fence(generation=order.generation, written_at=state.now)


def _set_timers(state: State, job: Job, fence: Fence) -> None:
    """The wardens of older processes act: where they can read the fence soon, cut off ones later."""
    if fence.written_at is None:
        return
    settings = state.settings
    fence.timers = [
        state.time.after(settings.warden_s, lambda: _stop(state, job, fence, cut_off=False)),
        state.time.after(settings.fence_s, lambda: _stop(state, job, fence, cut_off=True)),
        state.time.at(
            _holds_at(state, fence.written_at), lambda: _take_for_granted(state, job, fence)
        ),
    ]


def _stop(state: State, job: Job, fence: Fence, *, cut_off: bool) -> None:
    for pod in tuple(_older(job, fence.generation)):
        if cut_off or pod.node.cut_off_since is None:
            processes.end(state, pod)
    state.touch(job)


def _take_for_granted(state: State, job: Job, fence: Fence) -> None:
    """Pods that went silent on their way out are given up: nothing of them can run any more."""
    for pod in tuple(job.leaving):
        if pod.generation < fence.generation and not pod.node.answers:
            pods.give_up(state, pod)
    state.touch(job)


def _holds_at(state: State, written_at: float) -> float:
    return round(written_at + state.settings.fence_s + state.settings.fence_margin_s, 6)


def _older(job: Job, generation: int) -> Iterator[Pod]:
    for pod in (*job.pods.values(), *job.leaving):
        if pod.processes is not None and pod.processes.generation < generation:
            yield pod


def _open(state: State, job: Job, fence: Fence) -> str:
    """Which older pod may still run; nothing once that cannot be."""
    if fence.written_at is not None and state.now >= _holds_at(state, fence.written_at):
        return ""
    if not job.is_known and fence.written_at is not None:
        return UNKNOWN_PODS
    unproven = [p for p in _older(job, fence.generation) if not pods.is_proven_stopped(p)]
    return f"proof that {unproven[0].name} on {unproven[0].node.name} ended" if unproven else ""
