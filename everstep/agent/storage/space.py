"""Free space at a path, and what is wrong with the storage there when a process could not write."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from everstep.agent.storage.set_aside import SET_ASIDE
from everstep.protocol import wire


def nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that exists: it may be made later."""
    return next((one for one in (path, *path.parents) if one.exists()), path)


def free_bytes(path: Path) -> int:
    filesystem = os.statvfs(path)
    return filesystem.f_bavail * filesystem.f_frsize


class StorageFault(NamedTuple):
    """What keeps checkpoints from being written."""

    kind: str
    text: str


FULL_DISK = "storage.full"
FULL = ("No space left on device", "Disk quota exceeded")
"""What a process that cannot write prints last."""
LEAST_ROOM = 1024 * 1024
"""Bytes: a filesystem with less free space is full."""


def storage_fault(path: Path, *, was_there: bool, needs: int, output: str) -> StorageFault | None:
    """Return the fault of the storage at this path, if it has one. Raises OSError.

    `needs` is the size of the last checkpoint, 0 if that is unknown. `output` is what a process printed last
    that ended.
    """
    try:
        fault = fault_of(path, os.statvfs(path), needs=needs, output=output)
    except FileNotFoundError:
        if was_there:
            return StorageFault("storage.missing", f"{path} is not there any more")
        fault = None
    if fault is not None and fault.kind == FULL_DISK:
        return fault._replace(text=f"{fault.text}{_room_set_aside(path)}")
    return fault or write_fault(path)


def _room_set_aside(path: Path) -> str:
    """How many saves are kept that no run resumes from: an operator may delete them to make room."""
    folder = path / wire.FENCE_FOLDER / SET_ASIDE
    with contextlib.suppress(OSError):
        if count := len(os.listdir(folder)):  # noqa: PTH208  # one read of a folder that may be slow
            return f"; {folder} has {count} set aside, which no run reads"
    return ""


def write_fault(path: Path) -> StorageFault | None:
    """Return what keeps this process from writing to the folder, or from making it. Raises OSError."""
    folder = nearest(path)
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return StorageFault("storage.read_only", f"{folder} can only be read")
    if not os.access(folder, os.W_OK | os.X_OK):
        return StorageFault("storage.unwritable", f"{folder} cannot be written")
    return None


def why_unwritable(path: Path, *, needs: int) -> StorageFault | None:
    """What keeps a checkpoint from being written there; `needs` as in `storage_fault`. Raises OSError."""
    folder = nearest(path)
    return write_fault(path) or fault_of(folder, os.statvfs(folder), needs=needs, output="")


def fault_of(
    path: Path, filesystem: os.statvfs_result, *, needs: int, output: str
) -> StorageFault | None:
    """The fault that the statistics of the filesystem show; `needs` and `output` as in `storage_fault`."""
    if filesystem.f_flag & os.ST_RDONLY:
        return StorageFault("storage.read_only", f"{path} can only be read")
    if filesystem.f_files and not filesystem.f_favail:
        return StorageFault(FULL_DISK, f"{path} takes no more files")
    if not filesystem.f_blocks:
        return None  # one that counts no room, as some of object stores do
    free = filesystem.f_bavail * filesystem.f_frsize
    reported = any(words in output for words in FULL)
    # If the process reported no full disk, only very little room explains its end.
    least = max(LEAST_ROOM, needs) if reported else min(LEAST_ROOM, needs or filesystem.f_frsize)
    if free < least:
        return StorageFault(FULL_DISK, f"{path} is full, {free} bytes are free")
    return None
