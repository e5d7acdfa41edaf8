"""Finds fenced folders above and below a folder, on its volume.

A job takes what is saved in its folders, and below them, for its own. So a folder is free only if no other
job has a folder that contains it or lies in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from everstep.agent import wire

DEPTH_MOST = 4
FOLDERS_MOST, ENTRIES_MOST = 500, 20_000
"""Most folders and entries that are looked at below one: storage may hold millions. The look upwards has no
limit: a job that enters a folder deep below another one finds that."""


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
    folders, entries_left = [(top, 0)], ENTRIES_MOST
    for folder, depth in folders:
        for entry in _folders_in(folder):
            entries_left -= 1
            if entries_left < 0 or len(folders) >= FOLDERS_MOST:
                return
            if entry.name == wire.FENCE_FOLDER or not _is_on(entry, volume):
                continue
            if _is_fenced(entry.path):
                yield entry.path
            if depth + 1 < DEPTH_MOST:
                folders.append((entry.path, depth + 1))


def _folders_in(folder: str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))


def _is_on(entry: os.DirEntry[str], volume: int) -> bool:
    with contextlib.suppress(OSError):
        return entry.stat(follow_symlinks=False).st_dev == volume
    return False


def _is_fenced(folder: str) -> bool:
    return Path(folder, wire.FENCE_FOLDER).is_dir()
