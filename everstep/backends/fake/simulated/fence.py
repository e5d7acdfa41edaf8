"""The fence of a job in the fake cluster: written, read by wardens. When it holds is `rules.fencing`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from everstep.backends.fake.simulated import pods, processes
from everstep.backends.fake.simulated.model import FakeFence, Job, Pod
from everstep.backends.fake.simulated.state import FakeState
from everstep.backends.rules import fencing
from everstep.core.world import FenceOrder, FenceState


def ensure(state: FakeState, job: Job, order: FenceOrder) -> FenceState:
    """Write the fence, once; then say whether it holds."""
    _note_submission(state, job, order)
    fence = job.fence
    is_new = fence is None or fence.generation != order.generation
    if fence is None or is_new:
        has_folder = fencing.has_folder(order)
        if has_folder and job.unwritable is not None:
            return FenceState.refused(job.unwritable.message)
        if has_folder and not _can_write(job, order):
            return fencing.to_be_written(order)
        if newer := _newer(state, order):
            job.newest_on_storage = max(job.newest_on_storage, newer)
            return fencing.newer_on_storage(newer)
        written_at = state.now if has_folder else None
        fence = job.fence = _write(state, job, order, written_at=written_at)
    answer = FenceState(done=True) if fence.is_proven else _proof(state, job, fence)
    if is_new and not answer.done:
        _set_timers(state, job, fence)
    if answer.done:
        job.may_have_unknown_pods = False
        _close(fence)
    return replace(answer, has_saved_before=job.has_saved_before)


def _note_submission(state: FakeState, job: Job, order: FenceOrder) -> None:
    """At its first fence, note whether an earlier submission saved where this one does."""
    submitted = order.job.first_run or order.job.run
    if submitted == job.fenced_for:
        return
    place = (order.run.checkpoints_path, order.run.checkpoints_of)
    is_same = bool(job.fenced_for) and place == (job.checkpoints_path, job.checkpoints_of)
    job.has_saved_before = is_same and any(state.storage.ever_newest_first(*place))
    job.fenced_for = submitted


def _close(fence: FakeFence) -> None:
    """The fence holds; later calls return at once."""
    fence.is_proven = True
    for timer in fence.timers:
        timer.cancel()


def _can_write(job: Job, order: FenceOrder) -> bool:
    pod = job.pods.get(order.lowest_slot)
    return pod is not None and not pod.is_lost and pod.node.answers


def _folders(order: FenceOrder) -> list[str]:
    return [path for path in (order.run.model_dir, order.run.checkpoints_path) if path is not None]


def _newer(state: FakeState, order: FenceOrder) -> int:
    """The newer generation that another job, which has ended, left in the folders; 0: none.

    The job's own generations only grow.
    """
    generation = state.storage.newest_fence(_folders(order))
    return generation if generation >= order.generation else 0


def _write(state: FakeState, job: Job, order: FenceOrder, *, written_at: float | None) -> FakeFence:
    job.checkpoints_path = order.run.checkpoints_path or job.checkpoints_path
    job.checkpoints_of = order.run.checkpoints_of
    path, phase = order.run.checkpoints_path, order.run.checkpoints_of
    if order.begins and path is not None and phase is not None:
        state.storage.begin(path, phase, state.now)
    settings = state.settings
    for path in _folders(order):
        state.storage.fence(path, order.generation)
    if written_at is not None:
        state.note(f"fence {job.id} g{order.generation}")
    return FakeFence(
        generation=order.generation,
        holds_at=fencing.holds_at(
            written_at, fence_s=settings.fence_s, margin_s=settings.fence_margin_s
        ),
    )


def _set_timers(state: FakeState, job: Job, fence: FakeFence) -> None:
    """Let wardens end older processes: soon where they can read the fence, later where cut off."""
    if fence.holds_at is None:
        return
    settings = state.settings
    fence.timers = [
        state.time.after(settings.warden_s, lambda: _stop(state, job, fence, also_cut_off=False)),
        state.time.after(settings.fence_s, lambda: _stop(state, job, fence, also_cut_off=True)),
        state.time.at(fence.holds_at, lambda: _give_up_silent_pods(state, job, fence)),
    ]


def _stop(state: FakeState, job: Job, fence: FakeFence, *, also_cut_off: bool) -> None:
    for pod in tuple(_older(job, fence.generation)):
        if also_cut_off or pod.node.cut_off_since is None:
            processes.end(state, pod)
    state.touch(job)


def _give_up_silent_pods(state: FakeState, job: Job, fence: FakeFence) -> None:
    """Give up leaving pods whose node is silent: the fence's time has passed, so nothing runs in them."""
    silent = [pod for pod in job.leaving if not pod.node.answers]
    for pod in silent:
        if pod.generation < fence.generation:
            pods.give_up(state, pod)
    state.touch(job)
    state.capacity_changed()


def _older(job: Job, generation: int) -> Iterator[Pod]:
    for pod in (*job.pods.values(), *job.leaving):
        if pod.processes is not None and pod.processes.generation < generation:
            yield pod


def _proof(state: FakeState, job: Job, fence: FakeFence) -> FenceState:
    older = _older(job, fence.generation)
    return fencing.state(
        [f"{p.name} on {p.node.name}" for p in older if not pods.is_proven_stopped(p)],
        may_have_unknown_pods=job.may_have_unknown_pods,
        holds_at=fence.holds_at,
        now=state.now,
    )
