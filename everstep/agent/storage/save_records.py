"""Records of the saves in a folder, by the agents that watched them, in `.everstep/saves/<slot>.json` there.

An agent writes its file when its run begins and whenever the state of a save changes, so that the agent which
chooses a checkpoint has it, also after the end of this one. A file is replaced as a whole. The state of a
save counts only for the content that the save had then: number of files, size, last change. A save without a
state is unknown, never whole.

Agents of one job on one machine may see each other's saves. Each can say only that none of its own processes
was killed with the file open. So a file that was closed is whole if all of their records agree; one that was
renamed into place is whole if any record has it so.

The record of a slot that is gone stays: it may be the only one that shows a file cut off. What it shows open
has no content to compare, so it counts only for what was written before a later run began: a run begins once
all processes of the run before it have ended; ranks that live through are in its own records.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everstep.agent.storage import files, permissions
from everstep.agent.storage.save_states import CLOSED, LEFT, OPEN, RENAMED, UNWATCHED
from everstep.protocol import wire

FOLDER = "saves"
BYTES_MOST = 256 * 1024
SAVES_MOST = 64
"""The newest of one record. A job never goes back to a save that is older than so many."""
FILES_MOST = 10_000
"""A save of more files has no print, and so no state."""


class Print(NamedTuple):
    """What identifies the content of a save."""

    files: int  # number of them
    bytes: int
    changed_ns: int  # the last change of any of its files


class SaveRecord(NamedTuple):
    """One save, as an agent recorded it."""

    state: str  # of `save_states`
    content: Print | None  # None: it was being written when this was recorded


Run = tuple[str, int]
"""A job and a generation."""
Begin = tuple[Run, int]
"""A run, and when it began by the clock of the storage."""


class SlotRecord(NamedTuple):
    """The record that the agent of one slot has of the saves of one run."""

    job: str
    generation: int
    kernel: str  # the boot of the machine, whose agents see the same events
    is_over: bool  # every process of the pod had ended: it wrote nothing of what came later
    saves: Mapping[str, SaveRecord]
    began_ns: int | None = None  # by the clock of the storage; None: unknown

    @property
    def run(self) -> Run:
        return self.job, self.generation

    @property
    def witnesses(self) -> tuple[str, int, str]:
        """Equal for the records of agents that saw the same events."""
        return self.job, self.generation, self.kernel


def read(folder: Path) -> dict[int, SlotRecord]:
    """The record of each slot. One that cannot be read says nothing."""
    records = {}
    with contextlib.suppress(OSError):
        for entry in sorted(_folder(folder).iterdir()):
            if entry.suffix == ".json" and entry.stem.isdigit():
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                    records[int(entry.stem)] = _record(files.read_json(entry, BYTES_MOST))
    return records


def read_slot(folder: Path, slot: int) -> SlotRecord | None:
    """The record of one slot. None: there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return _record(files.read_json(_path(folder, slot), BYTES_MOST))
    return None


def written_ns(folder: Path, slot: int) -> int:
    """When the record of this slot was written, by the clock of the storage. Raises OSError."""
    return _path(folder, slot).lstat().st_mtime_ns


def write(folder: Path, slot: int, record: SlotRecord) -> None:
    """Replace the record of this slot. Never makes the folder of the saves. Raises OSError."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there")
    newest = dict([*record.saves.items()][-SAVES_MOST:])
    content = {
        **record._asdict(),
        "saves": {name: {**save._asdict()} for name, save in newest.items()},
    }
    permissions.users_folder(_folder(folder))
    files.replace(_path(folder, slot), json.dumps(content), mode=0o644, has_one_writer=True)


def state(records: Iterable[SlotRecord], name: str, content: Print | None) -> str | None:
    """The state of this save by all records: open, closed or renamed. None: unknown.

    A closed one is that only if all agents that saw the same events agree, and no record of any run has it
    as one that its own processes may have been killed with.
    """
    records = [*records]
    begins = {(record.run, record.began_ns) for record in records if record.began_ns is not None}
    states = [(record, _state_in(record, name, content, begins)) for record in records]
    distinct = {state for _, state in states}
    if RENAMED in distinct:
        return RENAMED
    closed = [record for record, state in states if state == CLOSED]
    if not distinct & {LEFT, UNWATCHED} and any(_all_agree(record, states) for record in closed):
        return CLOSED
    return OPEN if distinct & {OPEN, LEFT} else None


def _all_agree(claim: SlotRecord, states: Iterable[tuple[SlotRecord, str | None]]) -> bool:
    return all(
        state == CLOSED or (record.is_over and state is None)
        for record, state in states
        if record.witnesses == claim.witnesses
    )


def _state_in(
    record: SlotRecord, name: str, content: Print | None, begins: Collection[Begin]
) -> str | None:
    """What this record says of a save with this content, where runs began at these times."""
    save = record.saves.get(name)
    if save is None or save.content not in (None, content):
        return None
    if save.content is not None:
        return save.state
    return OPEN if save.state == OPEN and not _was_written_later(record, content, begins) else None


def _was_written_later(
    record: SlotRecord, content: Print | None, begins: Collection[Begin]
) -> bool:
    """Whether a run after that of the record had begun when this content was last changed."""
    if content is None or record.began_ns is None:
        return False
    later = (at for run, at in begins if run != record.run and at > record.began_ns)
    return any(at < content.changed_ns for at in later)


def print_of(top: Path) -> Print | None:
    """What identifies this file, or folder with its files, now. None: a link, or it cannot be read."""
    try:
        infos = [entry.lstat() for entry in _files(top)]
    except OSError:
        return None
    if not infos or top.is_symlink():
        return None
    changed_ns = max(info.st_mtime_ns for info in infos)
    return Print(len(infos), sum(info.st_size for info in infos), changed_ns)


def _files(top: Path) -> list[Path]:
    if not top.is_dir():
        return [top]
    paths: list[Path] = []
    for parent, _, names in os.walk(top):
        paths += [Path(parent, name) for name in names]
        if len(paths) > FILES_MOST:
            return []
    return paths


def _folder(folder: Path) -> Path:
    return folder / wire.FENCE_FOLDER / FOLDER


def _path(folder: Path, slot: int) -> Path:
    return _folder(folder) / f"{slot}.json"


def _record(content: Any) -> SlotRecord:
    """Raises KeyError, TypeError, ValueError or AttributeError if it is none."""
    saves = {
        str(name): SaveRecord(str(save["state"]), _print(save["content"]))
        for name, save in content["saves"].items()
    }
    return SlotRecord(
        str(content["job"]),
        int(content["generation"]),
        str(content["kernel"]),
        content["is_over"] is True,
        saves,
        _time(content.get("began_ns")),
    )


def _time(content: Any) -> int | None:
    return None if content is None else int(content)


def _print(content: Any) -> Print | None:
    return None if content is None else Print(*map(int, content))
