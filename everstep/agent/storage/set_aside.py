"""Moves checkpoints that must not be resumed from out of the way of scripts that take the newest.

They are renamed into the fence's folder beside them and stay there: nothing is deleted, nothing is copied. A
tracker file that names one of them is saved there too, and then names the chosen one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from everstep.agent.storage import checkpoint_names, files, permissions
from everstep.agent.storage.checkpoint_formats import DEEPSPEED_TRACKER, MEGATRON_TRACKER, TRACKERS
from everstep.agent.storage.checkpoints import TRACKER_MAX
from everstep.protocol import wire

SET_ASIDE = "set_aside"


def ensure(
    folder: Path,
    checkpoints: Sequence[str],
    *,
    resume: str | None,
    generation: int,
    require_stopped: Callable[[], object],
    pattern: str | None = None,
) -> tuple[list[str], str]:
    """Set these aside. Return the paths of all that this generation has set aside, and the error, if any.

    A repeated call returns the same paths, as they are read from the names in the folder.

    `require_stopped` is called before each change, and raises once ranks of this generation may run: nothing
    waits for slow storage, and they may save under the same names.
    """
    record, why = folder / wire.FENCE_FOLDER / SET_ASIDE, ""
    try:
        if checkpoints:
            permissions.users_folder(record)
            for tracker in sorted(TRACKERS):
                copy = record / f"{generation}-{tracker}"
                _point(folder / tracker, copy, resume, pattern, require_stopped)
        for name in (
            name for path in checkpoints for name in _entries(folder, Path(path), pattern)
        ):
            require_stopped()
            os.rename(folder / name, record / f"{generation}-{name}")  # noqa: PTH104  # by name as all here
    except OSError as error:
        why = error.strerror or str(error)
    return moved(folder, generation, pattern), why


def moved(folder: Path, generation: int, pattern: str | None) -> list[str]:
    """The paths of all that this generation has set aside."""
    return [*_moved(folder / wire.FENCE_FOLDER / SET_ASIDE, f"{generation}-", pattern)]


def _moved(record: Path, before: str, pattern: str | None) -> Iterator[str]:
    """Paths of the checkpoints with this prefix."""
    with contextlib.suppress(OSError):  # there is none, or none that anything could be moved into
        for entry in sorted(os.listdir(record)):  # noqa: PTH208  # names are all that is needed
            name = entry.removeprefix(before)
            if name != entry and name not in TRACKERS and checkpoint_names.read(name, pattern):
                yield str(record / entry)


def _entries(folder: Path, checkpoint: Path, pattern: str | None) -> Iterator[str]:
    """Entries of this checkpoint, which may be several files: its own, and others with its number.

    None if it is not in the folder.
    """
    if checkpoint.parent != folder or not (name := checkpoint_names.read(checkpoint.name, pattern)):
        return
    for entry in sorted(os.listdir(folder)):  # noqa: PTH208  # names are all that is needed
        if entry == checkpoint.name or (
            name.has_number and checkpoint_names.read(entry, pattern) == name
        ):
            yield entry


def _point(
    tracker: Path,
    copy: Path,
    resume: str | None,
    pattern: str | None,
    require_stopped: Callable[[], object],
) -> None:
    """Make the tracker name no later checkpoint than the one to resume from."""
    try:
        text = files.read(tracker, TRACKER_MAX, within=tracker.parent)
    except (FileNotFoundError, files.NotPlain, files.TooLarge):
        return
    tracked = checkpoint_names.tracked(text, pattern)
    chosen = None if resume is None else checkpoint_names.read(Path(resume).name, pattern)
    if tracked is None or tracked.step is None or (chosen is not None and tracked <= chosen):
        return
    files.replace(copy, text, mode=0o644)
    require_stopped()
    if resume is None or chosen is None or chosen.step is None:
        tracker.unlink()
        return
    contents = {MEGATRON_TRACKER: str(chosen.step), DEEPSPEED_TRACKER: Path(resume).name}
    files.replace(tracker, contents[tracker.name], mode=0o644)
