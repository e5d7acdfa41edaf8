"""The fence of a folder: which job may write there, and in which generation. Per job it only grows.

Every generation that is written is a file of its own, `generation.<n>.<job>`, there as a whole or not at
all; the newest one of a job counts. So a writer that was stopped half way and wakes up later puts nothing
back. `generation` shows the newest one to people and to programs of theirs.

A job that has ended says so in its fence. Until then the folder is its own. Whoever is new enters itself,
looks who else is there, and leaves again if anybody is: of two jobs that want one folder the later one is
refused, and what it may have left behind half way does not concern the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everstep.agent import wire

LOCK_S = 1.0
"""A stopped process may hold the lock: then the file for people stays as it is."""

GENERATION_MOST = 2**53 - 1
"""The largest whole number that every reader of JSON can tell from its neighbours."""
BYTES_MOST = 4096
FILES_MOST = 100
OF_ONE_GENERATION = re.compile(rf"{wire.FENCE_FILE}\.([1-9][0-9]{{0,15}})\.[0-9a-f]{{16}}")

Owner = tuple[str, str]
"""A job, and the cluster that knows it."""


class Fence(NamedTuple):
    """What one generation says."""

    job: str
    run: str
    cluster: str
    generation: int
    holds: bool = False  # nobody else was there when the job came
    released: bool = False  # the job has ended

    @property
    def owner(self) -> Owner:
        return self.job, self.cluster

    @property
    def is_held(self) -> bool:
        return self.holds and not self.released

    @property
    def name(self) -> str:
        """Of its file."""
        owner = hashlib.sha256("\0".join(self.owner).encode()).hexdigest()[:16]
        return f"{wire.FENCE_FILE}.{self.generation}.{owner}"


class Spoiled(OSError):
    """Something that is no fence is in its place: nobody can tell who may write to the folder."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"somebody spoiled its fence: {wire.FENCE_FOLDER}{what}; remove that once no job writes here"
        )


class Taken(Exception):
    """A job that has not ended came to the folder before."""

    def __init__(self, folder: str, by: Fence) -> None:
        super().__init__(f"{folder} belongs to job {by.job}, which has not ended")
        self.by = by


def path_in(folder: str) -> Path:
    return Path(folder) / wire.FENCE_FOLDER / wire.FENCE_FILE


# -- Reading ------------------------------------------------------------------------------------


def read(folder: str) -> dict[Owner, Fence]:
    """The newest fence of each job. Raises OSError, FileNotFoundError where there never was one."""
    with _opened(folder) as handle:
        return _newest(handle)


def other(fences: Mapping[Owner, Fence], owner: Owner) -> Fence | None:
    """Who keeps this job from the folder, unless it is its own already."""
    own = fences.get(owner)
    if own is not None and own.is_held:
        return None
    others = (fence for fence in fences.values() if fence.owner != owner and not fence.released)
    return next(others, None)


def _newest(handle: int) -> dict[Owner, Fence]:
    newest: dict[Owner, Fence] = {}
    for fence in _fences(handle):
        known = newest.get(fence.owner)
        if known is None or fence.generation >= known.generation:
            newest[fence.owner] = fence
    return newest


def _fences(handle: int) -> Iterator[Fence]:
    """All that can be read, the one for people first: of the same generation the other one counts."""
    names = sorted(name for name in os.listdir(handle) if _is_fence(name))
    if len(names) > FILES_MOST:
        raise Spoiled(f" holds {len(names)} generations")
    for name in names:
        try:
            yield _fence(_content(handle, name))
        except FileNotFoundError:
            continue  # a newer one was written meanwhile
        except ValueError as error:
            raise Spoiled(f"/{name} {error}") from None


def _is_fence(name: str) -> bool:
    return name == wire.FENCE_FILE or OF_ONE_GENERATION.fullmatch(name) is not None


NO_FENCE = "is nothing that we wrote"


def _content(handle: int, name: str) -> Any:
    """What the file says. Neither a link nor what would keep us waiting is read, nor much of anything."""
    if not stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
        raise ValueError("is no plain file")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # it may be another by now
    file = os.open(name, flags, dir_fd=handle)
    try:
        text = os.read(file, BYTES_MOST + 1)
    finally:
        os.close(file)
    if len(text) > BYTES_MOST:
        raise ValueError(f"is larger than {BYTES_MOST} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(NO_FENCE) from None


def _fence(said: Any) -> Fence:
    """What was read, as a fence. Raises ValueError."""
    if not isinstance(said, dict):
        raise ValueError(NO_FENCE)
    job, run, cluster = (said.get(name) for name in ("job", "run", "cluster"))
    if not (isinstance(job, str) and isinstance(run, str) and isinstance(cluster, str)):
        raise ValueError("does not say whose it is")
    generation = said.get("generation")
    if type(generation) is not int or not 0 < generation <= GENERATION_MOST:
        raise ValueError(f"has no generation from 1 to {GENERATION_MOST}")
    holds, released = said.get("holds") is True, said.get("released") is True
    return Fence(job, run, cluster, generation, holds=holds, released=released)


# -- Writing ------------------------------------------------------------------------------------


def write(folder: str, new: Fence) -> Path:
    """Afterwards the fence says this generation or a newer one of the job. Raises Taken and OSError."""
    Path(folder, wire.FENCE_FOLDER).mkdir(parents=True, exist_ok=True)
    with _opened(folder) as handle:
        own = _newest(handle).get(new.owner)
        is_held = own is not None and own.is_held
        if own is None or (own.generation, is_held) < (new.generation, True):
            if not is_held:
                _come(handle, folder, new)
            fence = new._replace(holds=True)
            _replace(handle, fence.name, fence)
            _show(handle, fence)
            _tidy(handle, fence)
            os.fsync(handle)
    return path_in(folder)


def _come(handle: int, folder: str, new: Fence) -> None:
    """Enter the job, and leave again if anybody else is there: nobody is overlooked by both of two."""
    _enter(handle, new)
    if by := other(_newest(handle), new.owner):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new.name, dir_fd=handle)
        raise Taken(folder, by)


def outdate(folder: str, new: Fence) -> None:
    """End what older generations of the job may still do in a folder that it has left. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(folder) as handle:
        own = _newest(handle).get(new.owner)
        if own is not None and own.generation < new.generation:
            _enter(handle, new._replace(released=True))
            os.fsync(handle)


def release(folder: str, owner: Owner, *, up_to: int) -> None:
    """The job has ended with this generation: the folder is free for the next one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _opened(folder) as handle:
        own = _newest(handle).get(owner)
        if own is not None and not own.released and own.generation <= up_to:
            ended = own._replace(released=True)
            _replace(handle, ended.name, ended)
            _show(handle, ended)
            os.fsync(handle)


def _enter(handle: int, fence: Fence) -> None:
    """Make the file of this generation. One that is there already is as good."""
    with _fresh(handle, fence) as fresh:
        try:
            os.link(fresh, fence.name, src_dir_fd=handle, dst_dir_fd=handle)
        except FileExistsError:
            pass
        except OSError:  # storage without hard links
            os.rename(fresh, fence.name, src_dir_fd=handle, dst_dir_fd=handle)


def _show(handle: int, fence: Fence) -> None:
    """The file for people: it only grows too, which needs its lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open("lock", flags, 0o600, dir_fd=handle)
    try:
        if not _is_locked_in_time(lock):
            return
        shown = _shown(handle)
        if shown is None or shown.generation <= fence.generation:
            _replace(handle, wire.FENCE_FILE, fence)
    finally:
        os.close(lock)


def _shown(handle: int) -> Fence | None:
    try:
        return _fence(_content(handle, wire.FENCE_FILE))
    except (FileNotFoundError, ValueError):
        return None


def _is_locked_in_time(lock: int) -> bool:
    deadline = time.monotonic() + LOCK_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # storage that knows no locks
            return True
        else:
            return True
    return False


def _tidy(handle: int, fence: Fence) -> None:
    """Remove older generations: this job's, and those of jobs that have ended.

    The end of the one that is shown is kept: where the lock was held, nothing else tells of it.
    """
    shown = _shown(handle)
    for name in _older(os.listdir(handle), fence.generation):
        with contextlib.suppress(OSError, ValueError):
            older = _fence(_content(handle, name))
            is_shown = shown is not None and shown.owner == older.owner
            if older.owner == fence.owner or (older.released and not is_shown):
                os.unlink(name, dir_fd=handle)


def _older(names: Iterable[str], generation: int) -> list[str]:
    numbers = ((name, OF_ONE_GENERATION.fullmatch(name)) for name in names)
    return [name for name, number in numbers if number and int(number[1]) < generation]


def _replace(handle: int, name: str, fence: Fence) -> None:
    with _fresh(handle, fence) as fresh:
        os.rename(fresh, name, src_dir_fd=handle, dst_dir_fd=handle)


@contextlib.contextmanager
def _fresh(handle: int, fence: Fence) -> Iterator[str]:
    """A file that says this, under a name that nobody else has; what still has it then, is removed."""
    name = f"{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o644, dir_fd=handle)
    try:
        with os.fdopen(file, "w") as out:
            json.dump(fence._asdict(), out)
            out.flush()
            os.fsync(out.fileno())
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=handle)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(Path(folder) / wire.FENCE_FOLDER, flags)
    except NotADirectoryError:
        if Path(folder).is_dir():
            raise Spoiled(" is no folder, or a link to one") from None
        raise
    try:
        yield handle
    finally:
        os.close(handle)
