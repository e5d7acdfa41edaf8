"""When the lines of a rank's log were written: a file of stamps beside the log, each an offset and a time.

The time of a byte is that of the last stamp before it. Stamps are for people who read the logs of several
ranks; nothing is decided by them. A stamp that cannot be written is left out.
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

STAMPS_EVERY_S, SMALL_STAMPS_EVERY_S = 0.1, 1.0
"""Least time between two stamps, and between two with less of the log between them than a stamp is long: they
must not outgrow their log."""

_FILE_MOST = 64 * 1024 * 1024
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_STAMP = struct.Struct("<Qd")
"""An offset, and the time at which the byte there was written."""


def times_beside(log: Path) -> Path:
    """The path of the file with the time stamps of this log."""
    return log.with_suffix(".times")


class TimeStamps:
    """The stamps of one log, written along with it."""

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
        is_small = offset - self._offset < _STAMP.size
        if 0 <= now - self._newest < (SMALL_STAMPS_EVERY_S if is_small else STAMPS_EVERY_S):
            return
        self._newest, self._offset = now, offset
        with suppress(OSError), os.fdopen(files.handle(self._path, _APPEND), "ab") as file:
            file.write(_STAMP.pack(offset, now))

    def leave_out(self, begin: int, end: int) -> None:
        """Remove the stamps of bytes that the log lost. The last one stays: it dates the byte at `end`."""
        with suppress(OSError):
            stamps = _read_stamps(self._path)
            stamp_of_end = bisect.bisect_right(stamps, (end, float("inf"))) - 1
            remaining = [m for i, m in enumerate(stamps) if m[0] < begin or i >= stamp_of_end]
            files.replace(self._path, b"".join(_STAMP.pack(*stamp) for stamp in remaining))


class Times:
    """The stamps of a log, for reading."""

    def __init__(self, log: Path) -> None:
        try:
            self._stamps = _read_stamps(times_beside(log))
        except OSError:  # a log from before there were any
            self._stamps = []

    def at(self, offset: int) -> float | None:
        """When the byte at this offset was written, if that is known."""
        newest = bisect.bisect_right(self._stamps, (offset, float("inf"))) - 1
        return self._stamps[newest][1] if newest >= 0 else None


def _read_stamps(path: Path) -> list[tuple[int, float]]:
    raw = files.read(path, _FILE_MOST)
    whole = len(raw) - len(raw) % _STAMP.size
    return list(_STAMP.iter_unpack(raw[:whole]))
