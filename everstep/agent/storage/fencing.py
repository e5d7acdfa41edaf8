"""Writes the fence of a generation in all folders of its job, after a look at each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from everstep.agent import wire
from everstep.agent.storage import fence, phase_mark, reading


def fenced(
    new: fence.Fence,
    folders: Iterable[str],
    left: Iterable[str],
    earlier: Collection[str] = (),
    *,
    workdir: str | None = None,
    begins: Mapping[str, str] = MappingProxyType({}),
) -> wire.FenceAnswer:
    """Write the fence and return the result; write nothing if a newer one is found. Raises OSError."""
    ask = _asking(wire.STORAGE_S)
    real = {folder: ask(folder, os.path.realpath) for folder in (*folders, *left)}
    answer: wire.FenceAnswer = {
        "real": real,
        "newer": 0,
        "is_held": False,
        "taken_by": None,
        "no_folder": "",
        "listing": None,
    }
    to_write = _to_write({folder: real[folder] for folder in folders})
    within = [folder for folder in to_write if workdir and Path(folder).is_relative_to(workdir)]
    if workdir and within and not ask(workdir, os.path.isdir):
        answer["no_folder"] = f"the workdir {workdir} is no folder"
    else:
        answer["no_folder"] = next(filter(None, (ask(one, _no_folder) for one in folders)), "")
    if answer["no_folder"]:
        return answer
    newer_fences = [ask(folder, fence.superseded_by, new) for folder in to_write]
    answer["newer"] = max((newer for newer, _ in newer_fences), default=0)
    answer["is_held"] = any(is_held for _, is_held in newer_fences)
    if answer["newer"]:
        return answer
    for folder in left:
        if real[folder] not in {real[one] for one in folders}:
            ask(folder, fence.outdate, new)
    for folder in to_write if earlier else ():
        ask(folder, fence.outdate_earlier, new.job, earlier)
    for folder in to_write:
        try:
            ask(folder, fence.write, new)
        except fence.FolderIsTaken as taken:
            job, cluster = taken.by.owner
            answer["taken_by"] = {"folder": folder, "job": job, "cluster": cluster}
            return answer
    for folder, phase in begins.items():
        ask(folder, phase_mark.ensure, phase)
    return answer


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


def _to_write(real: Mapping[str, str]) -> list[str]:
    """A folder that is inside the first one needs no fence of its own."""
    first = next(iter(real.values()), "")
    return [
        folder
        for number, (folder, path) in enumerate(real.items())
        if not number or not Path(path).is_relative_to(first)
    ]


def _asking(within_s: float) -> Callable[..., Any]:
    """A function that works on one folder after the other, and puts the folder's name into errors."""
    left_s = time_left(within_s)

    def ask(folder: str, do: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return reading.read(folder, partial(do, folder, *arguments), within_s=left_s())
        except reading.StorageHangs:
            raise  # it names the folder
        except OSError as error:
            raise OSError(f"{folder}: {error.strerror or error}") from None

    return ask


def time_left(within_s: float) -> Callable[[], float]:
    """A function that returns the rest of this time, for one folder after the other."""
    ends = time.monotonic() + within_s
    return lambda: max(0.0, ends - time.monotonic())
