"""The fence of a job: written through an agent, then proven. It holds by `rules.fencing`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from everstep.agent import wire
from everstep.agent.storage import fence as storage
from everstep.agent_client import fence
from everstep.agent_client.link import NoAnswer, Refused
from everstep.agent_client.stop import stop
from everstep.backends.local.cluster import LocalCluster
from everstep.backends.local.database import books, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.local.reconciling import reading
from everstep.backends.local.reconciling.liveness import Life, of_processes
from everstep.backends.rules import fencing
from everstep.core.errors import BackendUnavailable
from everstep.core.world import FenceOrder, FenceState

T = TypeVar("T")
LOG = logging.getLogger(__name__)

READ_S = 10.0
"""Storage that takes longer for a fence does not answer: as with a fence that cannot be read."""


async def ensure(cluster: LocalCluster, order: FenceOrder) -> tuple[FenceState, float | None]:
    """How far it is; and when it will hold without proof."""
    job = await cluster.store.run(lambda db: books.owned(db, order.job, order.generation))
    if job.fenced != order.generation:
        if refused := await _write(cluster, order, job):
            return refused, None
        job = await cluster.store.run(lambda db: books.job(db, order.job.id))
    if job.fence_holds:
        return FenceState(done=True), None
    return await _proof(cluster, order, job)


async def _write(cluster: LocalCluster, order: FenceOrder, job: books.Job) -> FenceState | None:
    """Through the agent of the lowest slot; what keeps it from being written, if anything does."""
    written_at: float | None = None
    real: Collection[str] = ()
    if wait := fencing.unwritten(order, unwritable=job.unwritable):
        own = await cluster.store.run(lambda db: pods.of_job(db, order.job.id))
        writer = next((pod for pod in own if pod.slot == order.lowest_slot), None)
        if wait.unwritable or writer is None:
            return wait
        known = await cluster.store.run(
            lambda db: books.folders(db, order.job.id, *fence.folders(order))
        )
        try:
            answer = await fence.write(
                cluster.agents, writer.uid, order, cluster=cluster.identity, left=known
            )
        except Refused as refused:
            return FenceState.refused(refused.why) if refused.status == wire.NO_STORAGE else wait
        except NoAnswer:
            return wait
        if newer := answer["newer"]:
            is_held = answer["is_held"]
            await cluster.store.run(
                lambda db: books.outdone(db, order.job.id, newer, is_held=is_held)
            )
            return fencing.outdone(newer)
        written_at, real = cluster.now(), answer["real"].values()
    await cluster.store.run(lambda db: _written(db, order, written_at, real))
    return None


def _written(db: Db, order: FenceOrder, at: float | None, real: Collection[str]) -> None:
    """Also where its folders are, whatever their names lead to later."""
    books.folders(db, order.job.id, *real)
    db.execute(
        "UPDATE jobs SET fenced = ?, fenced_at = ?, fence_holds = 0, "
        "checkpoints_path = COALESCE(?, checkpoints_path) WHERE id = ? AND fenced IS NOT ?",
        (order.generation, at, order.checkpoints_path, order.job.id, order.generation),
    )


# -- Where no agent of the job lives --------------------------------------------------------------
# Before the first pod of a job that comes from other books, and after the last one of a job that has
# ended, this machine is asked itself: nobody else is left who could be.


async def _read(folder: str, work: Callable[[], T]) -> T:
    return await reading.read(folder, work, within_s=READ_S)


async def outdate(folders: Iterable[str], owner: storage.FenceOwner, *, generation: int) -> int:
    """End what the owner may still have running, if it is at this generation; how far it had come."""
    for folder in folders:
        # Who cannot read it there either ends after `fence_s`.
        with contextlib.suppress(OSError, BackendUnavailable):
            own = (await _read(folder, partial(storage.read, folder))).get(owner)
            generation = max(generation, 0 if own is None else own.generation)
    newer = storage.Fence(owner[0], "", owner[1], generation + 1)
    for folder in folders:
        with contextlib.suppress(OSError, BackendUnavailable):
            await _read(folder, partial(storage.outdate, folder, newer))
    return generation


async def release(folders: Iterable[str], owner: storage.FenceOwner, *, up_to: int) -> None:
    """The job has ended: others may have its folders. One that cannot be reached stays its own."""
    for folder in folders:
        try:
            await _read(folder, partial(storage.release, folder, owner, up_to=up_to))
        except (OSError, BackendUnavailable) as error:
            LOG.warning("%s stays the folder of job %s: %s", folder, owner[0], error)


async def _proof(
    cluster: LocalCluster, order: FenceOrder, job: books.Job
) -> tuple[FenceState, float | None]:
    settings = cluster.settings
    holds_at = fencing.holds_at(
        job.fenced_at, fence_s=settings.fence_s, margin_s=settings.fence_margin_s
    )
    older, knows_half = await cluster.store.run(lambda db: _older(db, order))
    unproven = [pod for pod in older if not await _is_proven(cluster, pod, order)]
    state = fencing.state(
        [str(pod) for pod in unproven],
        knows_half=knows_half,
        holds_at=holds_at,
        now=cluster.now(),
    )
    if not state.done:
        return state, holds_at
    given_up = [pod.uid for pod in unproven if pod.is_leaving]
    await cluster.store.run(lambda db: _holds(db, order, given_up))
    return state, None


def _older(db: Db, order: FenceOrder) -> tuple[list[Pod], bool]:
    """The pods that are known, and whether there may be others."""
    job_id = order.job.id
    return [*pods.of_job(db, job_id), *pods.leaving(db, job_id)], books.is_half_known(
        db, order.job.id
    )


async def _is_proven(cluster: LocalCluster, pod: Pod, order: FenceOrder) -> bool:
    """Whether nothing older than the generation can run in this pod."""
    generation = order.generation
    if pod.dead_at is not None:
        return True
    if pod.service == "cut_off":
        return pod.generation >= generation
    if pod.is_leaving or pod.is_out:
        return of_processes(cluster.settings.folder(pod.uid).path) is Life.GONE
    watched = cluster.agents.known.get(pod.uid)
    state = watched.state if watched is not None else None
    if state is not None and state["stopped_below"] >= generation:
        return True
    if pod.generation >= generation:  # made for it: nothing older ever ran here
        return True
    return await _ends(cluster, pod.uid, order)


async def _ends(cluster: LocalCluster, uid: str, order: FenceOrder) -> bool:
    """An agent that was not there yet when the older processes were stopped is told now.

    It may also be one that this worker only has not heard since: whom it kept goes on.
    """
    stopped = await stop(cluster.agents, uid, order.generation, keep=order.kept)
    return stopped is not None and stopped.is_done


def _holds(db: Db, order: FenceOrder, given_up: list[str]) -> None:
    """From now on it is not asked again. Pods that nobody can reach are not waited for any more.

    Whoever was stopped after the proof may come late: it says nothing of a fence that was written since.
    """
    written = "UPDATE jobs SET fence_holds = 1 WHERE id = ? AND fenced = ?"
    if not db.execute(written, (order.job.id, order.generation)).rowcount:
        return
    db.execute("DELETE FROM half_known WHERE job = ?", (order.job.id,))
    for uid in given_up:
        pods.remove(db, uid)
