"""The fence of a folder: which job may write there, and in which generation. Per job it only grows.

Each generation is a file of its own, `generation.<n>.<job>`, written as a whole or not at all; the newest one
of a job counts. So a writer that was stopped half way and continues later resets nothing. The file
`generation` shows the newest one to people and their programs.

The folder belongs to a job until its fence says that the job has ended. A new job enters its file, looks
for other jobs, and removes its file if there is one. So of two jobs that want one folder the later one is
refused, and what it may have left behind does not affect the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everstep.agent import wire
from everstep.agent.storage import files, permissions

LOCK_S = 1.0
"""Longest wait for the lock. A stopped process may hold it: then the file for people stays as it is."""

GENERATION_MOST = 2**53 - 1
"""The largest integer that every JSON parser reads exactly."""
BYTES_MOST = 4096
FILES_MOST = 100
OUTDATED_MOST = 30
"""Outdated jobs that are kept in one folder, those of the highest generations."""
OF_ONE_GENERATION = re.compile(rf"{wire.FENCE_FILE}\.([1-9][0-9]{{0,15}})\.[0-9a-f]{{16}}")

FenceOwner = tuple[str, str]
"""A job, and the cluster that it runs on."""


class Fence(NamedTuple):
    """What one generation says."""

    job: str
    run: str
    cluster: str
    generation: int
    holds: bool = False  # no other job was there when this one came
    released: bool = False  # the job has ended
    outdated: bool = False  # the job left the folder; its older processes may still live

    @property
    def owner(self) -> FenceOwner:
        return self.job, self.cluster

    @property
    def is_held(self) -> bool:
        return self.holds and not self.released

    def ends(self, new: Fence) -> bool:
        """Whether another job ended with it; what outdates an earlier owner of this job is no end."""
        return self.released and not (self.outdated and self.job == new.job)

    @property
    def name(self) -> str:
        """Of its file."""
        owner = hashlib.sha256("\0".join(self.owner).encode()).hexdigest()[:16]
        return f"{wire.FENCE_FILE}.{self.generation}.{owner}"


class SpoiledFence(OSError):
    """A file of the fence was spoiled: it is unknown which job may write to the folder."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"somebody spoiled its fence: {wire.FENCE_FOLDER}{what}; remove that once no job writes here"
        )


class FolderIsTaken(Exception):
    """A job that has not ended came to the folder before."""

    def __init__(self, folder: str, by: Fence) -> None:
        super().__init__(f"{folder} belongs to job {by.job}, which has not ended")
        self.by = by


def path_in(folder: str) -> Path:
    return Path(folder) / wire.FENCE_FOLDER / wire.FENCE_FILE


# -- Reading ------------------------------------------------------------------------------------


def read(folder: str) -> dict[FenceOwner, Fence]:
    """The newest fence of each job. Raises OSError, FileNotFoundError where there never was one."""
    with _opened(folder) as fences:
        return _newest(fences)


def other(fences: Mapping[FenceOwner, Fence], owner: FenceOwner) -> Fence | None:
    """The fence of the job that has the folder; None if it is free or belongs to this job."""
    own_fence = fences.get(owner)
    if own_fence is not None and own_fence.is_held:
        return None
    other_fences = (
        fence for fence in fences.values() if fence.owner != owner and not fence.released
    )
    return next(other_fences, None)


def superseded_by(folder: str, new: Fence) -> tuple[int, bool]:
    """The generation that refuses this one, or 0, and whether that one's job holds the folder.

    A newer one does, and one of the same number that an earlier run of the job had.
    Files that another job left behind half way, or that a person wrote, do not count. Raises OSError.
    """
    try:
        fences = read(folder)
    except FileNotFoundError:
        return 0, False
    own_fence = fences.pop(new.owner, None)
    if own_fence is not None and own_fence.generation > new.generation:
        return own_fence.generation, own_fence.is_held
    if own_fence is not None and own_fence.generation == new.generation:
        # Books that began again give a number again: neither run would refuse the other.
        is_another_run = own_fence.run not in ("", new.run)
        return (own_fence.generation, own_fence.is_held) if is_another_run else (0, False)
    ended = max((one.generation for one in fences.values() if one.ends(new)), default=0)
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
    names = [name for name in names if name == wire.FENCE_FILE or OF_ONE_GENERATION.fullmatch(name)]
    if len(names) > FILES_MOST:
        raise SpoiledFence(f" holds {len(names)} generations")
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # a newer one was written meanwhile
            yield _read_fence(fences / name)


def _read_fence(path: Path) -> Fence:
    """Read the file. Raises OSError, and SpoiledFence if its content is no fence."""
    try:
        return _fence(files.read_json(path, BYTES_MOST))
    except (files.NotPlain, files.TooLarge, _Lacks) as error:
        raise SpoiledFence(f"/{path.name} {str(error).removeprefix(f'{path} ')}") from None
    except ValueError:
        raise SpoiledFence(f"/{path.name} is nothing that we wrote") from None


class _Lacks(Exception):
    """Something that a fence has to say."""


def _fence(content: Any) -> Fence:
    if not isinstance(content, dict):
        raise ValueError
    job, run, cluster = (content.get(name) for name in ("job", "run", "cluster"))
    if not (isinstance(job, str) and isinstance(run, str) and isinstance(cluster, str)):
        raise _Lacks("does not say whose it is")
    generation = content.get("generation")
    if type(generation) is not int or not 0 < generation <= GENERATION_MOST:
        raise _Lacks(f"has no generation from 1 to {GENERATION_MOST}")
    claims = {name: content.get(name) is True for name in ("holds", "released", "outdated")}
    return Fence(job, run, cluster, generation, **claims)


# -- Writing ------------------------------------------------------------------------------------


def write(folder: str, new: Fence) -> Path:
    """Afterwards the fence says this generation or a newer one of the job. Raises Taken and OSError."""
    permissions.users_folder(Path(folder, wire.FENCE_FOLDER))
    with _opened(folder) as fences:
        own_fence = _newest(fences).get(new.owner)
        is_held = own_fence is not None and own_fence.is_held
        if own_fence is None or (own_fence.generation, is_held) < (new.generation, True):
            if not is_held:
                _come(fences, folder, new)
            fence = new._replace(holds=True)
            _replace(fences / fence.name, fence)
            _show(fences, fence)
            _tidy(fences, fence)
            _sync(fences)
    return path_in(folder)


def _come(fences: Path, folder: str, new: Fence) -> None:
    """Enter the job, then leave if another one is there: of two at once at least one sees the other."""
    _enter(fences, new)
    if by := other(_newest(fences), new.owner):
        (fences / new.name).unlink(missing_ok=True)
        raise FolderIsTaken(folder, by)


def outdate(folder: str, new: Fence) -> None:
    """End what older generations of the job may still do in a folder that it has left. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(folder) as fences:
        own_fence = _newest(fences).get(new.owner)
        if own_fence is not None and own_fence.generation < new.generation:
            _enter(fences, new._replace(released=True, outdated=True))
            _sync(fences)


def outdate_earlier(folder: str, job: str, clusters: Collection[str]) -> None:
    """Outdate what these clusters, which the job has left, still hold in the folder. Raises OSError."""
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
    """The job has ended with this generation: the folder is free for the next one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(folder) as fences:
        own_fence = _newest(fences).get(owner)
        if own_fence is not None and not own_fence.released and own_fence.generation <= up_to:
            ended = own_fence._replace(released=True)
            _replace(fences / ended.name, ended)
            _show(fences, ended)
            _sync(fences)


def _enter(fences: Path, fence: Fence) -> None:
    """Make the file of this generation. One that is there already is as good."""
    files.create(fences / fence.name, json.dumps(fence._asdict()), mode=0o644)


def _show(fences: Path, fence: Fence) -> None:
    """The file for people: it only grows too, which needs its lock."""
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


def _tidy(fences: Path, fence: Fence) -> None:
    """Remove older generations: those of this job, and those of jobs that have ended.

    Of each job the lowest generation is removed first, so that the highest one, which outdates the
    others, is there as long as any of them. The end of the job that is shown is kept: where the lock
    was held, no other file has it. The highest generation of an outdated job is kept as well, for its
    stopped processes, up to `OUTDATED_MOST`.
    """
    shown_fence, by_owner = _shown_fence(fences), _by_owner(fences)
    older = [words.pop() for owner, words in by_owner.items() if owner != fence.owner]
    ended = {word.owner for word in older if word.released}
    for owner, words in by_owner.items():
        for word in words if owner == fence.owner or owner in ended else ():
            _remove(fences, word, below=fence)
    outdated = sorted((word for word in older if word.outdated), key=lambda word: word.generation)
    owners = {word.owner for word in outdated[-OUTDATED_MOST:]} | (
        {shown_fence.owner} if shown_fence else set()
    )
    for word in older:
        if word.released and word.owner not in owners:
            _remove(fences, word, below=fence)


def _by_owner(fences: Path) -> dict[FenceOwner, list[Fence]]:
    """The generations of each job that can be read, the lowest first."""
    fences_by_owner: dict[FenceOwner, list[Fence]] = {}
    for path in fences.iterdir():
        if OF_ONE_GENERATION.fullmatch(path.name):
            with contextlib.suppress(OSError):
                fence = _read_fence(path)
                fences_by_owner.setdefault(fence.owner, []).append(fence)
    return {
        owner: sorted(words, key=lambda word: word.generation)
        for owner, words in fences_by_owner.items()
    }


def _remove(fences: Path, fence: Fence, *, below: Fence) -> None:
    if fence.generation < below.generation:
        with contextlib.suppress(OSError):
            (fences / fence.name).unlink()


def _replace(path: Path, fence: Fence) -> None:
    files.replace(path, json.dumps(fence._asdict()), mode=0o644, is_synced=True)


def _sync(fences: Path) -> None:
    handle = os.open(fences, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[Path]:
    """The folder of its fences, which stays the same one whatever is put in its place meanwhile."""
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
