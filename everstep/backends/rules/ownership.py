"""Whose a job is, by its generations, and whose a folder is. Refuses by raising, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from everstep.core.errors import FolderTaken, OtherBooks, StaleGeneration
from everstep.core.world import JobRef

# -- Generations ----------------------------------------------------------------------------------


class Owned(Protocol):
    """What the books know of a job's ID."""

    @property
    def id(self) -> str: ...
    @property
    def newest(self) -> int:
        """Its newest generation."""

    @property
    def newest_run(self) -> str:
        """Who asked for that."""

    @property
    def closed(self) -> int:
        """Nothing of this generation or older is made any more."""


def refuse_strange(ref: JobRef, books: str) -> None:
    """Orders of a job that began in other books."""
    if ref.books not in ("", books):
        raise OtherBooks.strange(ref.id)


def refuse_unknown(job: Owned, generation: int) -> None:
    """A generation that these books never gave."""
    if generation > job.newest:
        raise OtherBooks.older(job.id, known=job.newest, own=generation)


def refuse_other(job: Owned, generation: int) -> None:
    """Orders of a generation that does not own the job."""
    refuse_unknown(job, generation)
    if generation < job.newest:
        raise StaleGeneration(job.id, given=generation, current=job.newest)


def refuse_ended(job: Owned, generation: int) -> None:
    """An order to make something that comes after the end: nobody would remove what it makes."""
    if generation <= job.closed:
        raise StaleGeneration(job.id, given=generation, current=job.closed + 1)


def refuse_late_end(job: Owned, run: str, own: int | None) -> None:
    """An earlier run, whose newest generation is `own`, may not end what a later one has begun."""
    if own is not None and own < job.newest and run != job.newest_run:
        raise StaleGeneration(job.id, given=own, current=job.newest)


# -- Folders --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of a job, all that it is called, and the newest generations in its fence."""

    path: str
    field: str  # of the document that names it
    names: tuple[str, ...]
    generation: int
    held: int = 0  # the newest one of the job itself, if it has not ended


def claimed(job: str, folders: Iterable[Folder], owners: Mapping[str, str]) -> dict[str, str]:
    """The job by every name of its folders, all of them; raises `FolderTaken` if one is another's."""
    for folder in folders:
        for name in folder.names:
            if (owner := owners.get(name, job)) != job:
                raise FolderTaken(folder.field, folder.path, owner)
    return {name: job for folder in folders for name in folder.names}


# -- Both -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The generation of a key."""

    generation: int
    is_new: bool = False
    knows_half: bool = False  # pods of the job may run that these books do not know


def given(job: Owned, before: int | None, *, above: int, folders: Iterable[Folder]) -> Given:
    """The one that the key was answered with before; else one above all that are known or found."""
    if before is not None and before > above:
        return Given(generation=before)
    found = tuple(folders)
    return Given(
        generation=max([job.newest, *(folder.generation for folder in found)]) + 1,
        is_new=True,
        knows_half=any(folder.held > job.newest for folder in found),
    )
