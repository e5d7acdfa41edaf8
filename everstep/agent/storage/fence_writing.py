"""Writes the fence of a generation in all folders of its job, after a look at each of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent.storage import fence, phase_mark, reading
from everstep.protocol import wire

NOT_MOUNTED = (
    "{}: the volume that was mounted there is missing; mount it again, or if no volume is wanted there, "
    "copy its files with `.everstep` to that folder"
)
VOLUMES_MOST = 1_000
"""Most bytes of the names of volumes in a fence, which has a largest size itself."""

_InTime = Callable[..., Any]
"""Calls a function on one folder, within what is left of the time; see `_within`."""


def write(command: wire.FenceCommand, job: str) -> wire.FenceAnswer:
    """Carry out the command for this job. Raises OSError.

    Looks at every folder before it writes to one: nothing is written where a folder cannot be made, or where
    one has a newer fence.
    """
    new = fence.Fence(job, command["run"], command["cluster"], command["generation"])
    in_time = _within(wire.STORAGE_S)
    folders, left = command["folders"], command["left"]
    real = {folder: in_time(folder, os.path.realpath) for folder in (*folders, *left)}
    answer: wire.FenceAnswer = {
        "real": real,
        "newer": 0,
        "is_held": False,
        "taken_by": None,
        "no_folder": "",
        "listing": None,
    }
    volumes = {folder: in_time(folder, fence.volume_of) for folder in folders}
    to_fence = _in_need_of_fence({folder: (real[folder], volumes[folder]) for folder in folders})
    answer["no_folder"] = _why_no_folder(in_time, command, to_fence)
    if answer["no_folder"]:
        return answer
    if missing := in_time(next(iter(folders), ""), _missing_volume, folders, new.owner):
        raise OSError(NOT_MOUNTED.format(missing))
    newer_fences = [in_time(folder, fence.superseded_by, new) for folder in to_fence]
    answer["newer"] = max((newer for newer, _ in newer_fences), default=0)
    answer["is_held"] = any(is_held for _, is_held in newer_fences)
    if answer["newer"]:
        return answer
    in_use = {real[folder] for folder in folders}
    for folder in left:
        if real[folder] not in in_use:
            in_time(folder, fence.outdate, new)
    if command["earlier"]:
        for folder in to_fence:
            in_time(folder, fence.outdate_earlier, job, command["earlier"])
    mounted = in_time(next(iter(folders), ""), _volumes_of_job, new.owner, folders, to_fence)
    answer["taken_by"] = _write_to_each(in_time, to_fence, new, mounted)
    if answer["taken_by"] is None:
        for folder, phase in command["begins"].items():
            in_time(folder, phase_mark.ensure, phase)
    return answer


def _missing_volume(_first: str, folders: Sequence[str], owner: fence.FenceOwner) -> str:
    return fence.missing_volume(folders, owner)


def _volumes_of_job(
    first: str, owner: fence.FenceOwner, folders: Sequence[str], to_fence: Sequence[str]
) -> tuple[str, ...]:
    """The volumes inside the first folder, by their paths from there; those of other phases too."""
    if not first:
        return ()
    below = {folder: fence.path_below(folder, first) for folder in folders[1:]}
    mounted = [name for folder, name in below.items() if folder in to_fence and name[:2] != ".."]
    earlier = [name for name in fence.volumes_in(first, owner) if name not in below.values()]
    names = [*dict.fromkeys((*mounted, *earlier))]
    while len(json.dumps(names)) > VOLUMES_MOST:
        names.pop()
    return tuple(names)


def _why_no_folder(in_time: _InTime, command: wire.FenceCommand, to_fence: Sequence[str]) -> str:
    """Why one of the folders cannot be made; empty if each is there or can be made."""
    workdir = command["workdir"]
    is_within = workdir and any(Path(folder).is_relative_to(workdir) for folder in to_fence)
    if is_within and not in_time(workdir, os.path.isdir):
        return f"the workdir {workdir} is no folder"
    return next(filter(None, (in_time(folder, _no_folder) for folder in command["folders"])), "")


def _write_to_each(
    in_time: _InTime, folders: Sequence[str], new: fence.Fence, volumes: tuple[str, ...]
) -> wire.TakenFolder | None:
    """Write the fence to each folder, up to one that belongs to another job: returns that one.

    `volumes`: those inside the first folder, whose fence names them.
    """
    for folder in folders:
        to_write = new._replace(volumes=volumes) if folder == folders[0] else new
        try:
            in_time(folder, fence.write, to_write)
        except fence.FolderIsTaken as taken:
            job, cluster = taken.by.owner
            return {"folder": folder, "job": job, "cluster": cluster, "owned": taken.owned}
    return None


def is_written(answer: wire.FenceAnswer) -> bool:
    return not answer["newer"] and answer["taken_by"] is None and not answer["no_folder"]


def _no_folder(folder: str) -> str:
    """Why the folder cannot be made; empty if it is there or can be made."""
    for path in (*reversed(Path(folder).parents), Path(folder)):
        if path.is_dir():
            continue
        if path.is_symlink() and not path.exists():
            return f"{path} is a link to {path.readlink()}, which is not there"
        return f"{path} is no folder" if path.exists() else ""
    return ""


def _in_need_of_fence(places: Mapping[str, tuple[str, int]]) -> list[str]:
    """The folders but for those inside the first one, which share its fence.

    A fence of their own would make folders that a script wants to make itself, or to find empty. And a volume
    that is no longer mounted is recognised by the lack of one in its place (`fence.missing_volume`).
    `places`: the path and the volume of each. One on another volume, mounted there, shares no fence:
    processes may be cut off from one of the two and write to the other.
    """
    first, volume = next(iter(places.values()), ("", 0))
    return [
        folder
        for number, (folder, (path, own_volume)) in enumerate(places.items())
        if not number or own_volume != volume or not Path(path).is_relative_to(first)
    ]


def _within(within_s: float) -> _InTime:
    """A function that works on one folder after the other, and puts the folder's name into errors."""
    left_s = time_left(within_s)

    def in_time(folder: str, do: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return reading.read(folder, partial(do, folder, *arguments), within_s=left_s())
        except reading.StorageHangs:
            raise  # it names the folder
        except OSError as error:
            raise OSError(f"{folder}: {error.strerror or error}") from None

    return in_time


def time_left(within_s: float) -> Callable[[], float]:
    """A function that returns the rest of this time, for one folder after the other."""
    ends = time.monotonic() + within_s
    return lambda: max(0.0, ends - time.monotonic())
