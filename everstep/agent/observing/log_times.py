"""When the lines of a rank's log were written: a file of marks beside the log, each an offset and a time.

The time of a byte is that of the last mark before it. Marks are for people who read the logs of several
ranks; nothing is decided by them. A mark that cannot be written is left out.
"""

from __future__ import annotations

import bisect
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from everstep.agent.storage import files

MARKS_EVERY_S, SMALL_MARKS_EVERY_S = 0.1, 1.0
"""Least time between two marks, and between two with less of the log between them than a mark is long: marks
must not outgrow their log."""

_FILE_MOST = 64 * 1024 * 1024
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_MARK = struct.Struct("<Qd")
"""An offset, and the time at which the byte there was written."""


def times_beside(log: Path) -> Path:
    """The path of the file with the time marks of this log."""
    return log.with_suffix(".times")


class Marks:
    """The marks of one log, written along with it."""

    def __init__(self, log: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = times_beside(log)
        self._clock = clock
        self._newest = float("-inf")
        self._offset = 0  # of the newest one
        with suppress(OSError):
            os.close(files.handle(self._path, _APPEND | os.O_TRUNC))

    def add(self, offset: int) -> None:
        """Note that the bytes from this offset on are written now."""
        now = self._clock()
        is_small = offset - self._offset < _MARK.size
        if 0 <= now - self._newest < (SMALL_MARKS_EVERY_S if is_small else MARKS_EVERY_S):
            return
        self._newest, self._offset = now, offset
        with suppress(OSError), os.fdopen(files.handle(self._path, _APPEND), "ab") as file:
            file.write(_MARK.pack(offset, now))

    def leave_out(self, begin: int, end: int) -> None:
        """Remove the marks of bytes that the log has lost. The last one stays: it dates the byte at `end`."""
        with suppress(OSError):
            marks = _read_marks(self._path)
            mark_of_end = bisect.bisect_right(marks, (end, float("inf"))) - 1
            remaining = [m for i, m in enumerate(marks) if m[0] < begin or i >= mark_of_end]
            files.replace(self._path, b"".join(_MARK.pack(*mark) for mark in remaining))


class Times:
    """The marks of a log, for reading."""

    def __init__(self, log: Path) -> None:
        try:
            self._marks = _read_marks(times_beside(log))
        except OSError:  # a log from before there were any
            self._marks = []

    def at(self, offset: int) -> float | None:
        """When the byte at this offset was written, if that is known."""
        newest = bisect.bisect_right(self._marks, (offset, float("inf"))) - 1
        return self._marks[newest][1] if newest >= 0 else None


def _read_marks(path: Path) -> list[tuple[int, float]]:
    raw = files.read(path, _FILE_MOST)
    whole = len(raw) - len(raw) % _MARK.size
    return list(_MARK.iter_unpack(raw[:whole]))
