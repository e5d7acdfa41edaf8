"""The fence of a folder: which job may write there, and in which generation. Per job it only grows.

A restart may choose a checkpoint only once no process of an older generation can write any more. Such a
process may be on a node that does not answer, or be stopped now and continue in an hour. No request reaches
it, but it uses the same storage. So the new generation is written there. The warden of each pod reads it
every second and ends older ranks (`fence_watch`). Storage itself refuses no write.

One file with the newest generation is the obvious fence: read it, compare, replace it. A writer that is
stopped after the comparison puts an older generation back when it continues. With a lock it would keep the
lock while it is stopped, and a restart cannot wait for that.

So each generation is a file of its own, `generation.<n>.<job>`, written as a whole or not at all; the newest
one of a job counts. `<job>` is a hash of the job and its cluster, as two clusters may each have a job of that
name. A late writer writes the file of its own generation and removes older ones: it resets nothing. The file
`generation` shows the newest one to people and their programs.

The folder belongs to a job until its fence says that the job has ended. No time frees it: a job may wait long
for a place and then continue. A new job enters its file, looks for other jobs, and removes its file if there
is one. So of two jobs that want one folder the later one is refused, and what it may have left behind does
not affect the first. Two that come at the same moment may both be refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everstep.agent.storage import files, permissions, surroundings
from everstep.protocol import wire

LOCK_S = 1.0
"""Longest wait for the lock. A stopped process may hold it: then the file for people stays as it is."""

GENERATION_MOST = 2**53 - 1
"""The largest integer that every JSON parser reads exactly."""
BYTES_MOST = 4096
FILES_MOST = 100
OUTDATED_MOST = 30
"""Outdated jobs that are kept in one folder, those of the highest generations."""
OF_ONE_GENERATION = rf"{wire.FENCE_FILE}\.([1-9][0-9]{{0,15}})\.[0-9a-f]{{16}}"

FenceOwner = tuple[str, str]
"""A job, and the cluster that it runs on."""


class Fence(NamedTuple):
    """The content of one file of the fence: a job in one generation."""

    job: str
    run: str
    cluster: str
    generation: int
    holds: bool = False  # the folder is the job's: no other job had it
    released: bool = False  # the job has ended
    outdated: bool = False  # the job left the folder, where older processes of it may still live
    # Folders inside this one, by their paths from here, in which other volumes are mounted.
    volumes: tuple[str, ...] = ()
    written_at: float | None = None  # by the clock of the agent that wrote the file

    @property
    def owner(self) -> FenceOwner:
        return self.job, self.cluster

    @property
    def is_held(self) -> bool:
        return self.holds and not self.released

    def is_end_of_another(self, new: Fence) -> bool:
        """Whether the job of this fence has ended, and it is not one that the job of `new` has outdated."""
        return self.released and not (self.outdated and self.job == new.job)

    @property
    def name(self) -> str:
        """The name of its file."""
        import hashlib  # with OpenSSL: only what writes a fence needs it

        owner = hashlib.sha256("\0".join(self.owner).encode()).hexdigest()[:16]
        return f"{wire.FENCE_FILE}.{self.generation}.{owner}"


class SpoiledFence(OSError):
    """A file of the fence is damaged: it is unknown which job may write to the folder."""

    def __init__(self, what: str, *, around: str = "") -> None:
        """`around`: the folder, where it is one above or below the folder that an error names."""
        whose = f"the fence of {around}" if around else "its fence"
        super().__init__(
            f"{whose} is damaged: {wire.FENCE_FOLDER}{what}; remove that once no job writes there"
        )
        self.what = what


class FolderIsTaken(Exception):
    """The folder belongs to another job, which has not ended, or contains or lies in one of that job."""

    def __init__(self, folder: str, by: Fence, *, owned: str) -> None:
        """`owned`: the folder of the other job."""
        super().__init__(f"{owned} belongs to job {by.job}, which has not ended: {folder} is taken")
        self.by, self.owned = by, owned


def path_in(folder: str) -> Path:
    return Path(folder) / wire.FENCE_FOLDER / wire.FENCE_FILE


# -- Reading ------------------------------------------------------------------------------------


def read(folder: str) -> dict[FenceOwner, Fence]:
    """The newest fence of each job. Raises OSError, FileNotFoundError where there never was one."""
    with _opened(folder) as fences:
        return _newest(fences)


def fence_of_other(fences: Mapping[FenceOwner, Fence], owner: FenceOwner) -> Fence | None:
    """The fence of another job that has the folder; None if it is free or belongs to the owner."""
    own_fence = fences.get(owner)
    if own_fence is not None and own_fence.is_held:
        return None
    other_fences = (
        fence for fence in fences.values() if fence.owner != owner and not fence.released
    )
    return next(other_fences, None)


def superseded_by(folder: str, new: Fence) -> tuple[int, bool]:
    """The generation that refuses `new`, or 0, and whether the job of that one holds the folder.

    A newer generation refuses it, and so does the same number of an earlier run of the job. An unfinished
    entry of another job does not. The end of another job with this number or a higher one does: the number
    that a folder shows only grows (`_show`). Raises OSError.
    """
    try:
        fences = read(folder)
    except FileNotFoundError:
        return 0, False
    own_fence = fences.pop(new.owner, None)
    if own_fence is not None and own_fence.generation > new.generation:
        return own_fence.generation, own_fence.is_held
    if own_fence is not None and own_fence.generation == new.generation:
        # A store of the cluster that was lost gives a number twice: neither run would refuse the other.
        is_another_run = own_fence.run not in ("", new.run)
        return (own_fence.generation, own_fence.is_held) if is_another_run else (0, False)
    ended = max(
        (one.generation for one in fences.values() if one.is_end_of_another(new)), default=0
    )
    return (ended, False) if ended >= new.generation else (0, False)


def _newest(fences: Path) -> dict[FenceOwner, Fence]:
    newest: dict[FenceOwner, Fence] = {}
    for fence in _all(fences):
        previous = newest.get(fence.owner)
        if previous is None or fence.generation >= previous.generation:
            newest[fence.owner] = fence
    return newest


def _all(fences: Path) -> Iterator[Fence]:
    """All fences, the file for people first: of the same generation the later one counts."""
    names = sorted(path.name for path in fences.iterdir())
    names = [
        name for name in names if name == wire.FENCE_FILE or re.fullmatch(OF_ONE_GENERATION, name)
    ]
    if len(names) > FILES_MOST:
        raise SpoiledFence(f" has {len(names)} generation files, more than {FILES_MOST}")
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # a newer one was written meanwhile
            yield _read_fence(fences / name)


def _read_fence(path: Path) -> Fence:
    """Read the file. Raises OSError, and SpoiledFence if its content is no fence."""
    try:
        return _fence(files.read_json(path, BYTES_MOST))
    except (files.NotPlain, files.TooLarge, _InvalidField) as error:
        raise SpoiledFence(f"/{path.name} {str(error).removeprefix(f'{path} ')}") from None
    except ValueError:
        raise SpoiledFence(f"/{path.name} is no JSON object of a fence") from None


class _InvalidField(Exception):
    """A field of the fence is missing or invalid."""


def _fence(content: Any) -> Fence:
    if not isinstance(content, dict):
        raise ValueError
    job, run, cluster = (content.get(name) for name in ("job", "run", "cluster"))
    if not (isinstance(job, str) and isinstance(run, str) and isinstance(cluster, str)):
        raise _InvalidField("does not name its job, run and cluster as texts")
    generation = content.get("generation")
    if type(generation) is not int or not 0 < generation <= GENERATION_MOST:
        raise _InvalidField(f"has no generation from 1 to {GENERATION_MOST}")
    claims = {name: content.get(name) is True for name in ("holds", "released", "outdated")}
    volumes = content.get("volumes")
    names = volumes if isinstance(volumes, list) else ()
    written_at = content.get("written_at")
    return Fence(
        job,
        run,
        cluster,
        generation,
        **claims,
        volumes=tuple(n for n in names if isinstance(n, str)),
        written_at=written_at if isinstance(written_at, float) else None,
    )


def clock_ahead_s(folder: Path) -> float:
    """By how much the clock of this storage is ahead of that of the machines, by the fence there; 0: unknown.

    The fence of a folder inside another one may be that of the outer one, on the same volume.
    """
    with contextlib.suppress(OSError):
        volume = volume_of(str(folder))
        for path in (folder, *folder.parents):
            if volume_of(str(path)) != volume:
                break
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return _clock_ahead_s(path_in(str(path)))
    return 0.0


def _clock_ahead_s(file: Path) -> float:
    """The difference between the file's time and the time in it. Raises OSError."""
    info = file.lstat()
    written_at = _read_fence(file).written_at
    return 0.0 if written_at is None else info.st_mtime - written_at


def missing_volume(folders: Sequence[str], owner: FenceOwner) -> str:
    """The folder of these whose volume is not mounted, by the fence of the first; empty if there is none.

    Such a volume has a fence of the job. A folder without one that is on the device of the first folder is
    the empty place where the volume was mounted. On another device the volume is mounted, and a user removed
    the fence. Raises OSError.
    """
    if not folders or not (volumes := volumes_in(folders[0], owner)):
        return ""
    first_volume = volume_of(folders[0])
    for folder in folders[1:]:
        if path_below(folder, folders[0]) in volumes and volume_of(folder) == first_volume:
            try:
                is_there = owner in read(folder)
            except FileNotFoundError:
                is_there = False
            if not is_there:
                return folder
    return ""


def volumes_in(folder: str, owner: FenceOwner) -> tuple[str, ...]:
    """The folders inside this one in which volumes are mounted, by its fence. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        own_fence = read(folder).get(owner)
        return () if own_fence is None else own_fence.volumes
    return ()


def volume_of(folder: str) -> int:
    """The device of the folder, or of the nearest one above it that is there. Raises OSError."""
    for path in (Path(folder), *Path(folder).parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return path.stat().st_dev
    raise FileNotFoundError(errno.ENOENT, "no folder above it is there", folder)


def path_below(folder: str, above: str) -> str:
    """The path of a folder inside another one, from there. Raises OSError."""
    return os.path.relpath(os.path.realpath(folder), os.path.realpath(above))


# -- Writing ------------------------------------------------------------------------------------


def write(folder: str, new: Fence) -> Path:
    """Bring the fence to this generation, unless the job has a newer one. Raises FolderIsTaken, OSError.

    A newer generation leaves it as it is, without an error: `superseded_by` has refused before.
    """
    if not Path(folder).is_dir():
        _refuse_around(folder, new.owner)  # before the folder is made: it may be another job's
    permissions.users_folder(Path(folder, wire.FENCE_FOLDER))
    with _opened(folder) as fences:
        own_fence = _newest(fences).get(new.owner)
        is_held = own_fence is not None and own_fence.is_held
        is_older = own_fence is None or own_fence.generation < new.generation
        is_same = own_fence is not None and own_fence.generation == new.generation
        if is_older or (is_same and not is_held):
            if not is_held:
                _claim(fences, folder, new)
            fence = new._replace(holds=True)
            _replace(fences / fence.name, fence)
            _show(fences, fence)
            _tidy(fences, fence)
            _sync(fences)
    return path_in(folder)


def _claim(fences: Path, folder: str, new: Fence) -> None:
    """Enter the job; withdraw it if another job is there, or in a folder above or below.

    Of two jobs at once at least one sees the other.
    """
    _enter(fences, new)
    try:
        if by := fence_of_other(_newest(fences), new.owner):
            raise FolderIsTaken(folder, by, owned=folder)
        _refuse_around(folder, new.owner)
    except (FolderIsTaken, SpoiledFence):
        (fences / new.name).unlink(missing_ok=True)
        raise


def _refuse_around(folder: str, owner: FenceOwner) -> None:
    for around in surroundings.fenced_around(folder):
        if by := fence_of_other(_read_around(around), owner):
            raise FolderIsTaken(folder, by, owned=around)


def _read_around(folder: str) -> dict[FenceOwner, Fence]:
    """As `read`, of a folder above or below: one that another user closed keeps no job out."""
    try:
        return read(folder)
    except SpoiledFence as error:
        raise SpoiledFence(error.what, around=folder) from None
    except (FileNotFoundError, PermissionError):
        return {}


def outdate(folder: str, new: Fence) -> None:
    """Bar older generations of the job from a folder that the job has left. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(folder) as fences:
        own_fence = _newest(fences).get(new.owner)
        if own_fence is not None and own_fence.generation < new.generation:
            _enter(fences, new._replace(released=True, outdated=True))
            _sync(fences)


def outdate_earlier(folder: str, job: str, clusters: Collection[str]) -> None:
    """Bar processes of the job on clusters that it has left from the folder. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        for owner, newest_fence in read(folder).items():
            if owner in {(job, cluster) for cluster in clusters} and not newest_fence.released:
                outdate(
                    folder,
                    newest_fence._replace(
                        run="", generation=newest_fence.generation + 1, holds=False
                    ),
                )


def release(folder: str, owner: FenceOwner, *, up_to: int) -> None:
    """Free the folder for the next job: this one has ended with generation `up_to`. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(folder) as fences:
        own_fence = _newest(fences).get(owner)
        if own_fence is not None and not own_fence.released and own_fence.generation <= up_to:
            ended = own_fence._replace(released=True)
            _replace(fences / ended.name, ended)
            _show(fences, ended)
            _sync(fences)


def _enter(fences: Path, fence: Fence) -> None:
    """Create the file of this generation, unless it is there."""
    files.create(fences / fence.name, _content(fence), mode=0o644)


def _show(fences: Path, fence: Fence) -> None:
    """Update the file for people, under its lock: its generation only grows too."""
    lock = os.open(fences / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _is_locked_in_time(lock):
            return
        shown_fence = _shown_fence(fences)
        if shown_fence is None or shown_fence.generation <= fence.generation:
            _replace(fences / wire.FENCE_FILE, fence)
    finally:
        os.close(lock)


def _shown_fence(fences: Path) -> Fence | None:
    with contextlib.suppress(FileNotFoundError, SpoiledFence):
        return _read_fence(fences / wire.FENCE_FILE)
    return None


def _is_locked_in_time(lock: int) -> bool:
    deadline = time.monotonic() + LOCK_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # storage without locks
            return True
        else:
            return True
    return False


def _tidy(fences: Path, new: Fence) -> None:
    """Remove fences older than `new`: those of its job, and those of jobs that have ended.

    Of each job the lowest generation goes first, so that the highest one, which refuses the others, is
    there as long as any of them. Of another job the highest one stays if it has not ended, if it is the one
    shown (where the lock was held, no other file has it), or if it is among the `OUTDATED_MOST` newest
    outdated ones, which refuse stopped processes of theirs.
    """
    by_owner = _by_owner(fences)
    own_fences = by_owner.pop(new.owner, [])
    newest = [other_fences[-1] for other_fences in by_owner.values()]
    outdated = sorted((fence for fence in newest if fence.outdated), key=_generation)
    needed_owners = {fence.owner for fence in outdated[-OUTDATED_MOST:]}
    if shown_fence := _shown_fence(fences):
        needed_owners.add(shown_fence.owner)
    removable = [own_fences]
    for other_fences in by_owner.values():
        if other_fences[-1].released:
            is_needed = other_fences[-1].owner in needed_owners
            removable.append(other_fences[:-1] if is_needed else other_fences)
    for fence in itertools.chain.from_iterable(removable):
        if fence.generation < new.generation:
            with contextlib.suppress(OSError):
                (fences / fence.name).unlink()


def _generation(fence: Fence) -> int:
    return fence.generation


def _by_owner(fences: Path) -> dict[FenceOwner, list[Fence]]:
    """The readable fences of each job, the lowest generation first."""
    by_owner: dict[FenceOwner, list[Fence]] = {}
    for path in fences.iterdir():
        if re.fullmatch(OF_ONE_GENERATION, path.name):
            with contextlib.suppress(OSError):
                fence = _read_fence(path)
                by_owner.setdefault(fence.owner, []).append(fence)
    return {
        owner: sorted(fences_of_job, key=_generation) for owner, fences_of_job in by_owner.items()
    }


def _replace(path: Path, fence: Fence) -> None:
    files.replace(path, _content(fence), mode=0o644, is_synced=True)


def _content(fence: Fence) -> str:
    """The content of its file, which is written now."""
    return json.dumps(fence._replace(written_at=time.time())._asdict())


def _sync(fences: Path) -> None:
    handle = os.open(fences, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[Path]:
    """Open the folder of fence files. The path stays that folder even if another one takes its place."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(Path(folder) / wire.FENCE_FOLDER, flags)
    except NotADirectoryError:
        if Path(folder).is_dir():
            raise SpoiledFence(" is no folder, or a link to one") from None
        raise
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
