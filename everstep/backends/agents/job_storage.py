"""A job's storage through its agents: its checkpoints, and the records beside its model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from everstep.backends.agents.commands import storage
from everstep.backends.agents.job_record import CheckpointPlace, JobRecord
from everstep.backends.agents.observing import note_endings
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record, record_of
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable, NoAgentAvailable
from everstep.core.world import Checkpoint, JobRef, SetAside, SetAsideOrder
from everstep.protocol import wire


async def checkpoints(cluster: AgentCluster, job: JobRef) -> tuple[Checkpoint, ...]:
    """The job's complete checkpoints, newest first. Raises NoAgentAvailable."""

    def read(books: JobBooks) -> tuple[wire.CheckpointsQuestion | None, list[str]]:
        place = record_of(books, job).checkpoints
        note_writers_ends(cluster, books)
        return checkpoints_question(books, place), _uids(books)

    question, uids = await cluster.books.change(job.id, read)
    return () if question is None else await storage.checkpoints(cluster.agents, uids, question)


async def write_problem(cluster: AgentCluster, job: JobRef) -> str:
    """What keeps the job's storage from being written, as reported for it or as an agent has it."""

    def read(books: JobBooks) -> tuple[JobRecord, list[str]]:
        return record_of(books, job), _uids(books)

    record, uids = await cluster.books.change(job.id, read)
    if record.unwritable is not None:
        return record.unwritable.message
    folder = record.checkpoints.path
    return "" if folder is None else await storage.write_problem(cluster.agents, uids, folder)


def note_writers_ends(cluster: AgentCluster, books: JobBooks) -> None:
    """Record which ranks of the job ended in the middle of something, perhaps of a save."""
    for pod in books.pods():
        note_endings(cluster, books, cluster.agents.by_uid.get(pod.uid))


def checkpoints_question(
    books: JobBooks, place: CheckpointPlace
) -> wire.CheckpointsQuestion | None:
    """The question to an agent of the job, after `note_writers_ends`; None where nothing is saved."""
    if place.path is None:
        return None
    return {
        "path": place.path,
        "format": place.format,
        "pattern": place.pattern,
        "phase": place.phase,
        "ended_between": list(books.record.ended_between),
        "is_over": books.record.ended_well,
    }


async def ensure_set_aside(cluster: AgentCluster, order: SetAsideOrder) -> SetAside:
    """Rename the order's checkpoints. Raises NoAgentAvailable."""
    place, uids = await cluster.books.change(
        order.job.id,
        lambda books: (owned_record(books, order.job, order.generation).checkpoints, _uids(books)),
    )
    if place.path is None:
        return SetAside()
    return await storage.set_aside(cluster.agents, uids, place.path, place.pattern, order)


async def ensure_recorded(
    cluster: AgentCluster,
    job: JobRef,
    entries: Iterable[Entry],
    *,
    write: Callable[[wire.JournalCommand], Awaitable[None]],
) -> None:
    """Write the entries beside the model, through an agent of the job; through `write` if none answers.

    The folders of the entries are absolute.
    """

    def read(books: JobBooks) -> list[str]:
        if (unwritable := record_of(books, job).unwritable) is not None:
            raise BackendUnavailable(unwritable.message)
        return _uids(books, with_leaving=True)

    uids = await cluster.books.change(job.id, read)
    for command in storage.journal_commands(job.id, entries):
        try:
            await cluster.agents.request_any(uids, wire.JOURNAL, command, within_s=wire.STORAGE_S)
        except NoAgentAvailable:  # its pods are gone, or stopped
            await write(command)


def _uids(books: JobBooks, *, with_leaving: bool = False) -> list[str]:
    """The pods whose agents may answer."""
    pods = [*books.pods(), *(books.leaving() if with_leaving else ())]
    return [pod.uid for pod in pods if not pod.is_out]
