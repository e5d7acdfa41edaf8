"""When what is in a log was written: marks beside it, each an offset and the time from which it counts.

They are for people who read logs of several ranks; nothing is decided by them. What cannot be written
is left out.
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

EVERY_S = 0.1
"""Not more often: marks must not outgrow the log of who prints much."""

_MOST = 64 * 1024 * 1024
_MORE = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_MARK = struct.Struct("<Qd")


def beside(log: Path) -> Path:
    """Where the marks of this log are."""
    return log.with_suffix(".times")


class Marks:
    """The marks of one log, written along with it."""

    def __init__(self, log: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = beside(log)
        self._clock = clock
        self._newest = float("-inf")
        with suppress(OSError):
            os.close(files.handle(self._path, _MORE | os.O_TRUNC))

    def add(self, offset: int) -> None:
        """Bytes from here on are written now."""
        now = self._clock()
        if 0 <= now - self._newest < EVERY_S:
            return
        self._newest = now
        with suppress(OSError), os.fdopen(files.handle(self._path, _MORE), "ab") as file:
            file.write(_MARK.pack(offset, now))

    def leave_out(self, begin: int, end: int) -> None:
        """The log has lost these bytes; their marks go too, up to the one that counts behind them."""
        with suppress(OSError):
            marks = _read(self._path)
            behind = bisect.bisect_right(marks, (end, float("inf"))) - 1
            kept = [mark for at, mark in enumerate(marks) if mark[0] < begin or at >= behind]
            files.replace(self._path, b"".join(_MARK.pack(*mark) for mark in kept))


class Times:
    """The marks of a log, to be asked."""

    def __init__(self, log: Path) -> None:
        try:
            self._marks = _read(beside(log))
        except OSError:  # a log from before there were any
            self._marks = []

    def at(self, offset: int) -> float | None:
        """When the byte at this offset was written, if that is known."""
        newest = bisect.bisect_right(self._marks, (offset, float("inf"))) - 1
        return self._marks[newest][1] if newest >= 0 else None


def _read(path: Path) -> list[tuple[int, float]]:
    told = files.read(path, _MOST)
    whole = len(told) - len(told) % _MARK.size
    return list(_MARK.iter_unpack(told[:whole]))
