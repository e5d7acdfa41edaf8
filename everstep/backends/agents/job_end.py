"""The end of a job: its pods are ordered to end, its folders are released, and its facts forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from everstep.backends.agents import job_record
from everstep.backends.agents.ports import AgentCluster, JobBooks
from everstep.backends.agents.transactions import record_of
from everstep.core.world import GoneState, JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What the fences of an ended job are released by."""

    job: str
    books: str  # identity of those that have the job
    generation: int  # nothing of it or older is made any more
    folders: tuple[str, ...]  # that the job ever wrote to
    earlier: list[str]  # the identities of the other books that had it before


async def ensure_gone(
    cluster: AgentCluster,
    job: JobRef,
    *,
    grace_s: float,
    remove_pods: Callable[[str], Awaitable[Sequence[str]]],
    release_folders: Callable[[JobEnd], Awaitable[None]],
) -> GoneState:
    """`remove_pods` returns what is left of the job's pods; once that is nothing the folders are released."""

    def close(books: JobBooks) -> JobEnd:
        record = books.record = job_record.closed(record_of(books, job), job)
        books.end_pods(grace_s)
        return JobEnd(
            job=job.id,
            books=cluster.books.identity,
            generation=record.newest,
            folders=record.folders,
            earlier=record.earlier(cluster.books.identity),
        )

    def forget(books: JobBooks) -> None:
        if books.record.newest == end.generation:  # else the job was begun again meanwhile
            books.record = job_record.forgotten(books.record, end.generation)
            books.forget()

    end = await cluster.books.change(job.id, close)
    if left := await remove_pods(job.id):
        return GoneState(done=False, waiting_for=f"{left[0]} to go")
    await release_folders(end)
    await cluster.books.change(job.id, forget)
    return GoneState(done=True)
