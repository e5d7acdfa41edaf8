"""What the kernel reports of changes in folders: files that are written, closed, renamed or removed.

Only changes made through the kernel of this machine are reported: none that other machines make to shared
storage.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import NamedTuple

from everstep.agent.processes import libc

MODIFY, CLOSE_WRITE = 0x2, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, IS_FOLDER = 0x4000, 0x8000, 0x40000000
_MASK = MODIFY | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
_ONLY_FOLDERS, _NOT_OF_REMOVED_FILES = 0x01000000, 0x04000000
_HEAD = struct.Struct("iIII")
_READ = 256 * 1024


class Event(NamedTuple):
    """One change, in the order in which the kernel saw them."""

    watch: int
    mask: int
    name: str  # of the file or folder in the watched folder

    @property
    def is_folder(self) -> bool:
        return bool(self.mask & IS_FOLDER)


class Inotify:
    """A queue of the kernel's events. Reading it never waits."""

    def __init__(self) -> None:
        """Raises OSError if the user has no instance left, or the kernel has none."""
        self.handle = libc.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        if self.handle < 0:
            raise OSError("the kernel gives no queue of file events")

    def watch(self, folder: Path) -> int:
        """Watch the entries of this folder. Returns the number in its events. Raises OSError."""
        mask = _MASK | _ONLY_FOLDERS | _NOT_OF_REMOVED_FILES
        number = libc.call("inotify_add_watch", self.handle, os.fsencode(folder), mask)
        if number < 0:
            raise OSError(f"{folder} cannot be watched")
        return number

    def unwatch(self, number: int) -> None:
        libc.call("inotify_rm_watch", self.handle, number)

    def read(self) -> list[Event]:
        """All events that have come."""
        events: list[Event] = []
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.handle, _READ):
                events += _parsed(piece)
        return events

    def close(self) -> None:
        os.close(self.handle)


def _parsed(piece: bytes) -> list[Event]:
    events, at = [], 0
    while at < len(piece):
        watch, mask, _cookie, length = _HEAD.unpack_from(piece, at)
        at += _HEAD.size
        name = piece[at : at + length].rstrip(b"\0")
        events.append(Event(watch, mask, os.fsdecode(name)))
        at += length
    return events
