"""Identifies the folder of a path on this machine by device and inode instead of names.

A folder that is not there yet is a path below one that is. So that a claim holds once the folder is made,
a place is named from each existing folder above it on the same volume, up to where that is mounted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath

from everstep.backends.local.reconciling.slow_storage import READ_S, read
from everstep.backends.rules.ownership import FolderClaim, FolderPlace
from everstep.core.errors import BackendUnavailable

Identity = tuple[int, int]
"""Device and inode."""


async def claims(folders: Mapping[str, str]) -> list[FolderClaim]:
    """The folders (path -> the field that names it) with their places, none where the storage hangs."""
    return list(await asyncio.gather(*(_claim(path, field) for path, field in folders.items())))


async def _claim(path: str, field: str) -> FolderClaim:
    try:
        folder_places = await read(path, partial(places, path), within_s=READ_S)
    except BackendUnavailable:
        folder_places = ()
    return FolderClaim(path=path, field=field, places=folder_places)


def places(path: str) -> tuple[FolderPlace, ...]:
    """The folder's places, from each existing folder on its volume that is above it, itself included."""
    found_places: list[FolderPlace] = []
    folder = PurePath(os.path.realpath(path))
    device: int | None = None
    for above in (folder, *folder.parents):
        if (identity := identity_of(str(above))) is None:
            continue
        if device not in (None, identity[0]):  # another volume, on which ours is mounted
            break
        device, inode = identity
        found_places.append(FolderPlace(f"{device}:{inode}", str(folder.relative_to(above))))
    return tuple(found_places)


def identity_of(path: str) -> Identity | None:
    """Device and inode of the path. None if it does not exist or may not be read."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino
