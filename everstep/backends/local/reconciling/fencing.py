"""The fence of a job in its folders: read, written through an agent, proven. It holds by `rules.fencing`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from everstep.agent import wire
from everstep.agent.storage import fence
from everstep.agent_client.link import ASK_S, NoAnswer, Refused
from everstep.backends.local.cluster import Cluster
from everstep.backends.local.database import books, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.local.reconciling import reading, stopping
from everstep.backends.local.reconciling.liveness import Life, of_processes
from everstep.backends.rules import fencing
from everstep.backends.rules.ownership import Folder
from everstep.core.errors import BackendUnavailable, FolderTaken
from everstep.core.world import FenceOrder, FenceState

T = TypeVar("T")
LOG = logging.getLogger(__name__)

READ_S = 10.0
"""Storage that takes longer for a fence does not answer: as with a fence that cannot be read."""


async def looked_at(folders: Mapping[str, str], owner: fence.Owner) -> list[Folder]:
    """Each folder under its true names: two ways to one folder are one. Raises `FolderTaken`."""
    found = [_looked_at(folder, field, owner) for folder, field in folders.items()]
    return list({one.path: one for one in await asyncio.gather(*found)}.values())


async def _looked_at(folder: str, field: str, owner: fence.Owner) -> Folder:
    try:
        return await _read(folder, partial(_found, folder, field, owner))
    except BackendUnavailable:
        return Folder(path=folder, field=field, names=(folder,), generation=0)


async def _read(folder: str, work: Callable[[], T]) -> T:
    return await reading.read(folder, work, within_s=READ_S)


def _found(folder: str, field: str, owner: fence.Owner) -> Folder:
    path = os.path.realpath(folder)
    names = (path, *_inode(path))
    try:
        fences = fence.read(path)
    except OSError:  # where it cannot be read, nothing is started: that is told when it is written
        return Folder(path=path, field=field, names=names, generation=0)
    if by := fence.other(fences, owner):
        where = (
            "" if by.cluster == owner[1] else " of another cluster (its EVERSTEP_HOME is not ours)"
        )
        raise FolderTaken(field, path, f"{by.job}{where}", is_ours=not where)
    # What another job left behind half way, or somebody made up, is no generation of ours.
    counted = [one for one in fences.values() if one.owner == owner or one.released]
    newest = max((one.generation for one in counted), default=0)
    own = fences.get(owner)
    held = own.generation if own is not None and own.is_held else 0
    return Folder(path=path, field=field, names=names, generation=newest, held=held)


def _inode(folder: str) -> Iterator[str]:
    """What a folder is called on this machine wherever it is mounted. It is made, so that it has one."""
    with contextlib.suppress(OSError):  # who is to write there is told why not
        Path(folder).mkdir(parents=True, exist_ok=True)
        seen = Path(folder).stat()
        yield f"{seen.st_dev}:{seen.st_ino}"


async def _real(order: FenceOrder) -> dict[str, str]:
    """The folders of the job, each with its true name. Raises BackendUnavailable."""
    named = [folder for folder in (order.model_dir, order.checkpoints_path) if folder is not None]
    reads = (_read(folder, partial(os.path.realpath, folder)) for folder in named)
    return dict(zip(named, await asyncio.gather(*reads), strict=True))


def _to_write(real: Mapping[str, str], model_dir: str | None) -> list[str]:
    """Where the fence is written: a folder that is inside the model's needs none of its own."""
    whole = real[model_dir] if model_dir is not None else None
    return [
        folder
        for folder, path in real.items()
        if whole is None or folder == model_dir or not Path(path).is_relative_to(whole)
    ]


async def ensure(cluster: Cluster, order: FenceOrder) -> tuple[FenceState, float | None]:
    """How far it is; and when it will hold without proof."""
    job = await cluster.store.run(lambda db: books.owned(db, order.job, order.generation))
    if job.fenced != order.generation:
        if refused := await _write(cluster, order, job):
            return refused, None
        job = await cluster.store.run(lambda db: books.job(db, order.job.id))
    if job.fence_holds:
        return FenceState(done=True), None
    return await _proof(cluster, order, job)


async def _write(cluster: Cluster, order: FenceOrder, job: books.Job) -> FenceState | None:
    """Through the agent of the lowest slot; what keeps it from being written, if anything does."""
    try:
        real = await _real(order)
    except BackendUnavailable as error:
        return FenceState.refused(str(error))
    written_at: float | None = None
    if wait := fencing.unwritten(order, unwritable=job.unwritable):
        own = await cluster.store.run(lambda db: pods.of_job(db, order.job.id))
        writer = next((pod for pod in own if pod.slot == order.lowest_slot), None)
        if wait.unwritable or writer is None:
            return wait
        try:
            await _write_through(cluster, writer, order, real)
        except Refused as refused:
            return FenceState.refused(refused.why) if refused.status == wire.NO_STORAGE else wait
        except NoAnswer:
            return wait
        written_at = cluster.now()
    await cluster.store.run(lambda db: _written(db, order, written_at))
    return None


async def _write_through(
    cluster: Cluster, writer: Pod, order: FenceOrder, real: Mapping[str, str]
) -> None:
    """Raises NoAnswer or Refused, and FolderTaken if another has a folder since this generation was given."""
    folders = _to_write(real, order.model_dir)
    body: wire.FenceCommand = {
        "generation": order.generation,
        "run": order.job.run,
        "cluster": cluster.identity,
        "folders": folders,
        "left": await _left(cluster, order, {real[folder] for folder in folders}),
    }
    try:
        within_s = wire.STORAGE_S + ASK_S
        await cluster.agents.ask(writer.uid, "POST", wire.FENCE, body, within_s=within_s)
    except Refused as refused:
        if refused.status == wire.TAKEN:
            fields = ((order.model_dir, "model_dir"), (order.checkpoints_path, "checkpoints.path"))
            told = {folder: field for folder, field in fields if folder is not None}
            await looked_at(told, (order.job.id, cluster.identity))
        raise


def _written(db: Db, order: FenceOrder, at: float | None) -> None:
    db.execute(
        "UPDATE jobs SET fenced = ?, fenced_at = ?, fence_holds = 0, "
        "checkpoints_path = COALESCE(?, checkpoints_path) WHERE id = ? AND fenced IS NOT ?",
        (order.generation, at, order.checkpoints_path, order.job.id, order.generation),
    )


async def _left(cluster: Cluster, order: FenceOrder, now: set[str]) -> list[str]:
    """Folders that earlier generations wrote to, where one that nobody could end may still be at it."""
    known = await cluster.store.run(lambda db: books.folders(db, order.job.id, *now))
    return [folder for folder in known if folder not in now]


async def outdate(folders: Iterable[str], owner: fence.Owner, *, generation: int) -> int:
    """End what the owner may still have running, if it is at this generation; how far it had come."""
    for folder in folders:
        # Who cannot read it there either ends after `fence_s`.
        with contextlib.suppress(OSError, BackendUnavailable):
            own = (await _read(folder, partial(fence.read, folder))).get(owner)
            generation = max(generation, 0 if own is None else own.generation)
    newer = fence.Fence(owner[0], "", owner[1], generation + 1)
    for folder in folders:
        with contextlib.suppress(OSError, BackendUnavailable):
            await _read(folder, partial(fence.outdate, folder, newer))
    return generation


async def release(folders: Iterable[str], owner: fence.Owner, *, up_to: int) -> None:
    """The job has ended: others may have its folders. One that cannot be reached stays its own."""
    for folder in folders:
        try:
            await _read(folder, partial(fence.release, folder, owner, up_to=up_to))
        except (OSError, BackendUnavailable) as error:
            LOG.warning("%s stays the folder of job %s: %s", folder, owner[0], error)


async def _proof(
    cluster: Cluster, order: FenceOrder, job: books.Job
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


async def _is_proven(cluster: Cluster, pod: Pod, order: FenceOrder) -> bool:
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


async def _ends(cluster: Cluster, uid: str, order: FenceOrder) -> bool:
    """An agent that was not there yet when the older processes were stopped is told now.

    It may also be one that this worker only has not heard since: whom it kept goes on.
    """
    body = stopping.command(cluster, uid, order.generation, keep=order.kept)
    try:
        state = cluster.agents.hear(uid, await cluster.agents.ask(uid, "POST", wire.STOP, body))
    except (NoAnswer, Refused):
        return False
    return state is not None and state["stopped_below"] >= order.generation


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
