"""Whose a job is, by its generations, and whose a folder is. Refuses by raising, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from everstep.core.errors import FolderTaken, Overlap, StaleGeneration, WrongCluster
from everstep.core.world import JobRef

# -- Generations ----------------------------------------------------------------------------------


class Owned(Protocol):
    """The fields of a job's record that decide about its generations."""

    @property
    def id(self) -> str: ...
    @property
    def newest(self) -> int:
        """Its newest generation."""

    @property
    def newest_on_storage(self) -> int:
        """The newest generation found on storage when a fence was to be written."""

    @property
    def newest_run(self) -> str:
        """The run that got the newest generation."""

    @property
    def closed(self) -> int:
        """Nothing of this generation or older is made any more."""


def refuse_strange(ref: JobRef, books: str) -> None:
    """Raise WrongCluster for an order of a job that began in other books."""
    if ref.books not in ("", books):
        raise WrongCluster.strange(ref.id)


def refuse_unknown(job: Owned, generation: int) -> None:
    """Raise WrongCluster for a generation that these books never gave."""
    if generation > job.newest:
        raise WrongCluster.older(job.id, newest=job.newest, ordered=generation)


def refuse_other(job: Owned, generation: int) -> None:
    """Raise StaleGeneration for an order older than the job's newest one, WrongCluster for an unknown one."""
    refuse_unknown(job, generation)
    if generation < job.newest:
        raise StaleGeneration(job.id, ordered=generation, current=job.newest)


def refuse_ended(job: Owned, generation: int) -> None:
    """Refuse an order to make something after the end of the job: it would never be removed."""
    if generation <= job.closed:
        raise StaleGeneration(job.id, ordered=generation, current=job.closed + 1)


def refuse_late_end(job: Owned, run: str, own_newest: int | None) -> None:
    """An earlier run, whose newest generation is `own_newest`, may not end what a later one has begun."""
    if own_newest is not None and own_newest < job.newest and run != job.newest_run:
        raise StaleGeneration(job.id, ordered=own_newest, current=job.newest)


# -- Folders --------------------------------------------------------------------------------------


class FolderPlace(NamedTuple):
    """Where a folder is, whatever the path to it: a volume, and the path inside that."""

    volume: str
    path: str

    def overlap(self, other: FolderPlace) -> Overlap | None:
        """How this folder lies to the other one. None: they have nothing in common."""
        if self == other:
            return "is"
        if other.contains(self):
            return "in"
        return "around" if self.contains(other) else None

    def contains(self, other: FolderPlace) -> bool:
        """Whether the other folder lies in this one."""
        top = self.path.rstrip("/")
        is_below = top in ("", ".") or other.path.startswith(f"{top}/")
        return self.volume == other.volume and self.path != other.path and is_below


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderClaim:
    """A folder that a job writes to."""

    path: str  # as its document names it
    field: str  # of the document
    # Several where volumes overlap. Two folders that share a place are the same.
    places: tuple[FolderPlace, ...]


def claimed(
    job: str, claims: Iterable[FolderClaim], owners: Mapping[FolderPlace, str]
) -> dict[FolderPlace, str]:
    """The job by each place of its folders.

    Raises FolderTaken if one of them is another job's, contains such a folder or lies in one: a job takes
    what is saved in its folders, or below them, for its own.
    """
    owned_by_others = {place: owner for place, owner in owners.items() if owner != job}
    places: dict[FolderPlace, str] = {}
    for claim in claims:
        for place in claim.places:
            # The folder itself first: a job has folders in each other, and each sentence would be true.
            for owned in sorted(owned_by_others, key=lambda owned: owned != place):
                if overlap := place.overlap(owned):
                    owner = owned_by_others[owned]
                    raise FolderTaken(claim.field, claim.path, owner, overlap=overlap)
            places[place] = job
    return places


# -- Both -----------------------------------------------------------------------------------------


def generation_for(job: Owned, before: int | None, *, above: int) -> int:
    """The generation for a key of `ensure_generation`: the same as before, else above all, also on storage.

    `before`: the earlier answer to the key. `above`: the newest generation in the job's state. An answer
    up to that one is outdated, so the key counts as new.
    """
    if before is not None and before > above:
        return before
    return max(job.newest, job.newest_on_storage) + 1
