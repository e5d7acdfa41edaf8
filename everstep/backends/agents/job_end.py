"""The end of a job: its folders are released, its pods are ordered to end, and its facts forgotten.

Another job may get the folders only when nothing of this one runs. An agent releases them where that is
proven while it lives; else the cluster does it after the last pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from everstep.backends.agents import job_record, job_storage, releasing
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, record_of
from everstep.core.errors import BackendUnavailable
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import Checkpoint, GoneState, JobRef
from everstep.protocol import wire

LISTED_S = 2.0
"""Seconds in which a stopped job's checkpoints are listed; after that it ends without that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What the fences of an ended job are released by, and whether they still have to be."""

    command: wire.ReleaseCommand
    pods: Sequence[Pod]  # those that leave included
    is_released: bool  # or it never had folders

    @property
    def job(self) -> str:
        return self.command["job"]

    @property
    def has_staying_pods(self) -> bool:
        """Whether some pod is not ordered to end yet: only the agents of such pods list checkpoints."""
        return not all(pod.is_leaving for pod in self.pods)


async def ensure_gone(
    cluster: AgentCluster,
    job: JobRef,
    *,
    grace_s: float,
    remove_pods: Callable[[], Awaitable[Sequence[WaitCause]]],
    release_folders: Callable[[JobEnd], Awaitable[WaitCause | None]],
) -> GoneState:
    """`remove_pods` returns a wait for each pod that is left; `release_folders` what it waits for, if so."""
    saved = None
    end = await cluster.books.change(job.id, lambda books: _close(books, job, cluster))
    if not end.is_released and end.pods:
        released = await releasing.release(cluster, end.pods, end.command, grace_s=grace_s)
        if isinstance(released, Pod):
            return GoneState(done=False, wait=WaitKind.RANKS_END.of(released))
        if released:
            end = await cluster.books.change(job.id, lambda books: _note_released(books, end))
        if grace_s > 0 and end.has_staying_pods:
            saved = await _last_saved(cluster, job)
    if not await cluster.books.change(job.id, lambda books: _end_pods(books, end, grace_s)):
        return GoneState(done=False, wait=WaitKind.NEW_GENERATION.of(), saved=saved)
    if left := await remove_pods():
        return GoneState(done=False, wait=left[0], saved=saved)
    if not end.is_released:
        if wait := await release_folders(end):
            return GoneState(done=False, wait=wait, saved=saved)
        end = await cluster.books.change(job.id, lambda books: _note_released(books, end))
    await cluster.books.change(job.id, lambda books: _forget(books, end))
    return GoneState(done=True, saved=saved)


async def _last_saved(cluster: AgentCluster, job: JobRef) -> Checkpoint | None:
    """The newest whole checkpoint, which ranks may have saved as they were stopped; None: it is unknown."""
    try:
        async with asyncio.timeout(LISTED_S):
            listed = await job_storage.checkpoints(cluster, job)
    except (TimeoutError, BackendUnavailable):  # the job ends all the same
        return None
    return next((checkpoint for checkpoint in listed if checkpoint.good), None)


def _close(books: JobBooks, job: JobRef, cluster: AgentCluster) -> JobEnd:
    record = books.record = job_record.closed(record_of(books, job), job)
    return JobEnd(
        command={
            "job": job.id,
            "cluster": cluster.books.identity,
            "generation": record.newest,
            "folders": list(record.folders),
            "earlier": record.earlier(cluster.books.identity),
        },
        pods=[*books.pods(), *books.leaving()],
        is_released=not record.folders or record.released >= record.newest,
    )


def _is_latest(books: JobBooks, end: JobEnd) -> bool:
    """Whether the job was not begun again meanwhile."""
    return books.record.newest == end.command["generation"]


def _note_released(books: JobBooks, end: JobEnd) -> JobEnd:
    if _is_latest(books, end):
        books.record = replace(books.record, released=end.command["generation"])
    return replace(end, is_released=True)


def _end_pods(books: JobBooks, end: JobEnd, grace_s: float) -> bool:
    if _is_latest(books, end):
        books.end_pods(grace_s)
    return _is_latest(books, end)


def _forget(books: JobBooks, end: JobEnd) -> None:
    if _is_latest(books, end):
        books.record = job_record.forgotten(books.record, end.command["generation"])
        books.forget()
