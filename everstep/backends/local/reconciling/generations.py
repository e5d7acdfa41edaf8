"""A generation in all slots at once: what is older ends, its fence is written and proven, its ranks begin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial

from everstep.agent import wire
from everstep.agent.storage import fence
from everstep.agent_client import environment, ranks, storage
from everstep.agent_client.link import NoAnswer, Refused
from everstep.backends.local.cluster import LocalCluster
from everstep.backends.local.database import books, closing, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.local.reconciling import reading
from everstep.backends.local.reconciling.liveness import Life, of_processes, sweep
from everstep.backends.local.settings import HOST
from everstep.backends.rules import fencing
from everstep.core.errors import BackendUnavailable
from everstep.core.world import (
    FenceOrder,
    FenceState,
    StartOrder,
    StartState,
    StopOrder,
    StopState,
)
from everstep.processes import free_port

LOG = logging.getLogger(__name__)

# -- The end of what is older ---------------------------------------------------------------------
# It is asked of the agents, and seen where those are gone.


async def ensure_stopped(cluster: LocalCluster, order: StopOrder) -> StopState:
    """End what is older than the order, in all slots at once; how far it is."""

    def read(db: Db) -> dict[int, Pod]:
        books.owned(db, order.job, order.generation)
        return {pod.slot: pod for pod in pods.of_job(db, order.job.id)}

    own = await cluster.store.run(read)
    slots = sorted(own) if order.slots is None else sorted(order.slots)
    answers = await asyncio.gather(*(_stop(cluster, own.get(slot), order) for slot in slots))
    evidence = (answer.evidence for answer in answers if answer.evidence and order.evidence)
    return StopState(
        stopped=tuple(slot for slot, a in zip(slots, answers, strict=True) if a.is_done),
        pending=tuple(slot for slot, a in zip(slots, answers, strict=True) if not a.is_done),
        kept=tuple(sorted(rank for answer in answers for rank in answer.kept)),
        evidence=next(evidence, None),
    )


async def _stop(cluster: LocalCluster, pod: Pod | None, order: StopOrder) -> ranks.Stopped:
    if pod is None:
        return ranks.Stopped(is_done=True)
    folder = cluster.settings.folder(pod.uid)
    if pod.is_out:
        return ranks.Stopped(is_done=sweep(folder.path) is Life.GONE)
    stopped = await ranks.stop(
        cluster.agents,
        pod.uid,
        order.generation,
        keep=order.keep,
        grace_s=order.grace_s,
        evidence=order.evidence,
    )
    if stopped is None:
        began = pod.has_answered or pod.service != "ready"
        return ranks.Stopped(is_done=not began and sweep(folder.path) is Life.GONE)
    return stopped


# -- The fence ------------------------------------------------------------------------------------
# It is written through an agent, then proven. It holds by `rules.fencing`.


async def ensure_fenced(
    cluster: LocalCluster, order: FenceOrder
) -> tuple[FenceState, float | None]:
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
        left, earlier = await cluster.store.run(
            lambda db: (
                books.folders(db, order.job.id, *storage.fence_folders(order)),
                books.earlier(db, order.job.id),
            )
        )
        try:
            answer = await storage.write_fence(
                cluster.agents,
                writer.uid,
                order,
                cluster=cluster.identity,
                left=left,
                earlier=earlier,
            )
        except Refused as refused:
            return FenceState.refused(refused.why) if refused.status == wire.NO_STORAGE else wait
        except NoAnswer:
            return wait
        if answer["no_workdir"]:
            return FenceState.refused(f"the workdir {order.workdir} is no folder", no_workdir=True)
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
        "checkpoints_path = COALESCE(?, checkpoints_path), checkpoints_format = ?, "
        "checkpoints_pattern = ?, checkpoints_of = ? WHERE id = ? AND fenced IS NOT ?",
        (
            *(order.generation, at),
            *(order.checkpoints_path, order.checkpoints_format, order.checkpoints_pattern),
            *(order.checkpoints_of, order.job.id, order.generation),
        ),
    )


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
    stopped = await ranks.stop(cluster.agents, uid, order.generation, keep=order.kept)
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


# -- The start ------------------------------------------------------------------------------------
# All ranks are told one place to meet.


async def ensure_started(cluster: LocalCluster, order: StartOrder) -> StartState:
    """Start what does not run yet; the folders of the order are absolute."""
    own, port = await cluster.store.run(lambda db: _pods_and_port(db, order))
    meeting = ranks.Meeting(hosts=(HOST,) * len(order.slots), port=port)
    slots = sorted(order.slots)
    answers = await asyncio.gather(
        *(_start(cluster, own.get(slot), slot, order, meeting) for slot in slots)
    )
    return ranks.state_of(dict(zip(slots, answers, strict=True)))


def _pods_and_port(db: Db, order: StartOrder) -> tuple[dict[int, Pod], int]:
    """The port of this generation is the same for every slot and whoever asks."""
    books.owned(db, order.job, order.generation)
    db.execute(
        "UPDATE jobs SET checkpoints_path = ?, checkpoints_format = ?, checkpoints_pattern = ?, "
        "checkpoints_of = ? WHERE id = ?",
        (
            *(order.checkpoints_path, order.checkpoints_format, order.checkpoints_pattern),
            *(order.checkpoints_of, order.job.id),
        ),
    )
    asked = (order.job.id, order.generation)
    db.execute("INSERT INTO ports VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (*asked, free_port()))
    row = db.execute("SELECT port FROM ports WHERE job = ? AND generation = ?", asked).fetchone()
    return {pod.slot: pod for pod in pods.of_job(db, order.job.id)}, row["port"]


async def _start(
    cluster: LocalCluster, pod: Pod | None, slot: int, order: StartOrder, meeting: ranks.Meeting
) -> wire.RunSeen | str | None:
    """The run of this generation, or why there can be none; None if nobody there knows of it."""
    if pod is None or pod.is_lost or pod.service != "ready":
        return None

    def command() -> wire.RunCommand | str:
        why = environment.lacking(cluster.settings.environ, order.env_from)
        return why or _command(cluster, pod, slot, order, meeting)

    return await ranks.run_of(cluster.agents, pod.uid, order.generation, command)


def _command(
    cluster: LocalCluster, pod: Pod, slot: int, order: StartOrder, meeting: ranks.Meeting
) -> wire.RunCommand:
    here = cluster.settings
    place = ranks.RunPlace(
        uid=pod.uid,
        agent=str(here.folder(pod.uid).path / wire.SOCKET),
        devices=pod.devices,
        accelerator=here.kind(order.accelerator),
        metrics=str(here.metrics(pod.node)),
    )
    settings = ranks.RankSettings(
        cluster=cluster.identity,
        fence_s=here.fence_s,
        environ=here.environ,
        pass_env=here.pass_env,
    )
    return ranks.run_command(order, slot, place, meeting=meeting, settings=settings)


# -- The end --------------------------------------------------------------------------------------
# After the last pod of a job no agent of it is left: this machine is asked itself.


async def release(job: str, cluster: str, closed: closing.Closed) -> None:
    """The job has ended: others may have its folders. One that cannot be reached stays its own."""
    for folder in closed.folders:
        try:
            work = partial(_release, folder, job, cluster, closed)
            await reading.read(folder, work, within_s=reading.READ_S)
        except (OSError, BackendUnavailable) as error:
            LOG.warning("%s stays the folder of job %s: %s", folder, job, error)


def _release(folder: str, job: str, cluster: str, closed: closing.Closed) -> None:
    fence.release(folder, (job, cluster), up_to=closed.generation)
    fence.outdate_earlier(folder, job, closed.earlier)
