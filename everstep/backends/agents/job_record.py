"""The record that the books keep of a job: one value, and the changes that orders make to it. Pure.

A cluster stores the record as it likes (a row, a ConfigMap) and replaces it only where it is still the one
that was read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter

from everstep.backends.rules import ownership
from everstep.core.facts import Fact
from everstep.core.world import FenceOrder, JobRef, StartOrder
from everstep.protocol.wire import RunOrder

KEYS_KEPT = 500
"""Number of keys kept of the newest run. A record has to fit into one object of an API server."""
RUNS_KEPT = 200
"""Earlier ones are kept with their newest generation alone: it refuses their late end."""
ENDS_KEPT = 500
"""Beyond this number the two closest times in which ranks ended are merged: one gets longer, none is lost."""
TOUCHING_S = 3
"""Times this close are merged, as no complete file fits between them: a file that changed from 2 s before
such a time to 1 s after it is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """Where the job saves, and which of the files there are its checkpoints."""

    path: str | None = None
    format: str = "auto"
    pattern: str | None = None
    phase: str | None = None  # only what it saved counts; None: all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlace:
    """A place in which a checkpoint of the job was observed, and the newest run for which it was."""

    place: CheckpointPlace
    first_run: str  # the one that was submitted: it is the same over all phases


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """The durable record of a job ID, over all its runs."""

    id: str
    newest: int = 0  # the newest generation given out
    newest_run: str = ""  # the run of the job that has it
    closed: int = 0  # nothing of this generation or older is made any more
    released: int = 0  # the fences up to this generation are released
    newest_on_storage: int = 0  # the newest generation that was found on storage
    # Run of the job -> key of `ensure_generation` -> the generation given for it.
    generations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    server: str = ""  # the Temporal server of the newest run
    folders: tuple[str, ...] = ()  # that the job ever wrote to, in order
    # Identity of each earlier books -> the generation at which these books adopted the job.
    adoptions: Mapping[str, int] = field(default_factory=dict)
    may_have_unknown_pods: bool = False  # pods in no books; until the next fence holds by its time
    checkpoints: CheckpointPlace = CheckpointPlace()
    saved: SavedPlace | None = None
    unwritable: Fact | None = None  # the fact that reported its storage as such
    placed: int | None = None  # generation of the newest placement
    fenced: int | None = None  # generation of the newest fence
    fenced_at: float | None = None  # None: it has no folder to be written to
    fence_holds: bool = False
    started: int = 0  # generation of the newest start
    port: int = 0  # MASTER_PORT of that start
    # Times in which ranks ended in the middle of something: first and last wall-clock second, in order.
    ended_between: tuple[tuple[int, int], ...] = ()
    ended_well: bool = False  # all ranks of the newest start, so what they wrote last is complete
    checks: Mapping[str, Mapping[int, tuple[Fact, ...]]] = field(default_factory=dict)
    """What the checks before a start found, by pod and generation."""

    def earlier(self, identity: str) -> list[str]:
        """The identities of the other books that had the job before."""
        return [books for books in self.adoptions if books != identity]


# -- Who owns it ----------------------------------------------------------------------------------


def is_complete(record: JobRecord, ref: JobRef, identity: str, generation: int) -> bool:
    """Whether the books gave all generations up to this one, and did not adopt the job by this very call.

    The generation of the adoption may be newer than that of the call: a worker that was killed took one in
    the other books.
    """
    adopted_at = record.adoptions.get(ref.books or identity, 0)
    return adopted_at < generation <= record.newest


def with_generation(
    record: JobRecord, ref: JobRef, key: str, *, above: int, server: str
) -> tuple[JobRecord, int]:
    """The generation of this key; a new one is higher than any known, in the books or on storage."""
    run = record.generations.get(ref.run, {})
    before = run.get(key)
    new = ownership.generation_for(record, before, above=above)
    if new == before:
        return record, new
    earlier = {
        name: dict([max(keys.items(), key=itemgetter(1))])
        for name, keys in record.generations.items()
        if name != ref.run
    }
    runs = [*earlier.items(), (ref.run, dict([*run.items(), (key, new)][-KEYS_KEPT:]))]
    changed = replace(
        record,
        generations=dict(runs[-RUNS_KEPT:]),
        newest=new,
        newest_run=ref.run,
        server=server,
    )
    return changed, new


def adopted(record: JobRecord, ref: JobRef, identity: str, generation: int) -> JobRecord:
    """Record that these books adopted the job at this generation. The newest is then at least this one."""
    return replace(
        record,
        newest=max(record.newest, generation),
        newest_run=ref.run,
        adoptions={**record.adoptions, ref.books or identity: generation},
        may_have_unknown_pods=True,
    )


# -- The fence ------------------------------------------------------------------------------------


def with_folders(record: JobRecord, folders: Collection[str]) -> JobRecord:
    """Add folders to which the job writes."""
    return replace(record, folders=tuple(sorted({*record.folders, *folders})))


def with_newer_generation(record: JobRecord, newer: int, *, is_held: bool) -> JobRecord:
    """Record a newer generation found on storage. If the job still holds it, this store is a copy."""
    return replace(
        record,
        newest_on_storage=max(record.newest_on_storage, newer),
        may_have_unknown_pods=record.may_have_unknown_pods or is_held,
    )


def place_in(run: RunOrder) -> CheckpointPlace:
    """The place in which it saves checkpoints."""
    return CheckpointPlace(
        path=run.checkpoints_path,
        format=run.checkpoints_format,
        pattern=run.checkpoints_pattern,
        phase=run.checkpoints_of,
    )


def with_saved(record: JobRecord, ref: JobRef) -> JobRecord:
    """Record that a complete checkpoint was observed where the job saves."""
    saved = SavedPlace(place=record.checkpoints, first_run=_submitted(ref))
    return record if record.saved == saved else replace(record, saved=saved)


def has_saved_before(record: JobRecord, order: FenceOrder) -> bool:
    """Whether an earlier submission of this job ID saved where the order's generation does."""
    saved = record.saved
    return (
        saved is not None
        and saved.place == place_in(order.run)
        and saved.first_run != _submitted(order.job)
    )


def _submitted(ref: JobRef) -> str:
    return ref.first_run or ref.run


def with_fence(
    record: JobRecord, order: FenceOrder, at: float | None, real: Collection[str]
) -> JobRecord:
    """Record that the order's fence was written at this time, to folders with these real paths.

    Another worker may have recorded that already.
    """
    record = with_folders(record, real)
    if record.fenced == order.generation:
        return record
    place = place_in(order.run)
    place = replace(place, path=place.path or record.checkpoints.path)
    return replace(
        record, fenced=order.generation, fenced_at=at, fence_holds=False, checkpoints=place
    )


def with_held_fence(record: JobRecord, generation: int) -> JobRecord:
    """Record that the fence of this generation holds. A late proof says nothing of a newer fence."""
    if record.fenced != generation:
        return record
    return replace(record, fence_holds=True, may_have_unknown_pods=False)


# -- Start and end --------------------------------------------------------------------------------


def with_start(record: JobRecord, order: StartOrder, *, port: int) -> JobRecord:
    """Record that the order's generation starts.

    Its ranks meet at this port, unless they have one already.
    """
    record = replace(record, checkpoints=place_in(order.run), ended_well=False)
    if record.started == order.generation:
        return record
    return replace(record, port=port, started=order.generation)


def with_good_end(record: JobRecord) -> JobRecord:
    """Record that all ranks of the newest start have ended well."""
    return record if record.ended_well else replace(record, ended_well=True)


def with_ends(record: JobRecord, times: Iterable[tuple[int, int]]) -> JobRecord:
    """Add times in which ranks ended in the middle of something."""
    merged: list[tuple[int, int]] = []
    for began, ended in sorted({*record.ended_between, *times}):
        if merged and began - merged[-1][1] <= TOUCHING_S:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    while len(merged) > ENDS_KEPT:
        gaps = [later[0] - earlier[1] for earlier, later in pairwise(merged)]
        n = gaps.index(min(gaps))
        merged[n : n + 2] = [(merged[n][0], merged[n + 1][1])]
    ended_between = tuple(merged)
    if ended_between == record.ended_between:
        return record
    return replace(record, ended_between=ended_between)


def closed(record: JobRecord, ref: JobRef) -> JobRecord:
    """Close the job: nothing of it is created before its next generation. Raises StaleGeneration.

    `ended_well` is for files that its ranks have just written; other jobs may write there from now on.
    """
    newest = max(record.generations.get(ref.run, {}).values(), default=None)
    ownership.refuse_late_end(record, ref.run, newest)
    # What a job saved that ended well may be moved away: the next one of its ID begins anew then.
    saved = None if record.ended_well else record.saved
    return replace(record, closed=record.newest, ended_well=False, saved=saved)


def forgotten(record: JobRecord, generation: int) -> JobRecord:
    """Drop what the ended job held, unless it was begun again after this generation."""
    if record.newest > generation:
        return record
    return replace(record, adoptions={}, placed=None, fenced=None, ended_well=False)
