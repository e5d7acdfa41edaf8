"""Finds fenced folders above and below a folder, on its volume.

A job takes what is saved in its folders, and below them, for its own. So a folder is free only if no other
job has a folder that contains it or lies in it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from everstep.protocol import wire

DEPTH_MOST = 4
FOLDERS_MOST, ENTRIES_MOST, BELOW_S = 500, 20_000, 0.5
"""Most folders, entries and time of a look below, as storage may hold millions: it does what it can. The look
upwards has no limit: a job that enters a folder deep below another one finds that."""


def fenced_around(folder: str) -> Iterator[str]:
    """Folders above and below this one, which need not be there, that have a fence.

    What may not be read is left out.
    """
    top = os.path.realpath(folder)
    yield from _above(Path(top))
    with contextlib.suppress(FileNotFoundError, PermissionError):
        yield from _below(top, os.stat(top).st_dev)  # noqa: PTH116


def _above(top: Path) -> Iterator[str]:
    volume: int | None = None
    for folder in (top, *top.parents):
        try:
            device = folder.stat().st_dev
        except FileNotFoundError:
            continue
        if volume not in (None, device):
            return
        volume = device
        if folder != top and _is_fenced(str(folder)):
            yield str(folder)


def _below(top: str, volume: int) -> Iterator[str]:
    """Breadth first: a folder of a job lies near the top more often than deep below it."""
    folders, entries_left, ends_at = [(top, 0)], ENTRIES_MOST, time.monotonic() + BELOW_S
    for folder, depth in folders:
        for entry in _entries(folder):
            entries_left -= 1
            if not entries_left or len(folders) >= FOLDERS_MOST or time.monotonic() > ends_at:
                return
            if not entry.is_dir(follow_symlinks=False):
                continue
            if entry.name == wire.FENCE_FOLDER or not _is_on(entry, volume):
                continue
            if _is_fenced(entry.path):
                yield entry.path
            if depth + 1 < DEPTH_MOST:
                folders.append((entry.path, depth + 1))


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from entries


def _is_on(entry: os.DirEntry[str], volume: int) -> bool:
    with contextlib.suppress(OSError):
        return entry.stat(follow_symlinks=False).st_dev == volume
    return False


def _is_fenced(folder: str) -> bool:
    """Whether it has files of a fence: a state directory has the same name, and may be a link."""
    fences = Path(folder, wire.FENCE_FOLDER)
    return not fences.is_symlink() and any(
        entry.name.startswith(wire.FENCE_FILE) for entry in _entries(str(fences))
    )
