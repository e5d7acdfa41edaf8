"""The log of a rank: one file that never grows beyond a bound, and what a fact quotes of it.

The file has the first 8 MB of the output (the head), a line that says how many bytes were left out (the gap),
and the newest 12 to 24 MB (the tail). An offset counts the bytes that the rank wrote, whether they are still
in the file or not. What cannot be written is dropped: a full disk must not stop the training.
"""

from __future__ import annotations

import bisect
import os
import re
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from everstep.agent import wire
from everstep.agent.storage import files, permissions

MB = 1024 * 1024
HEAD = 8 * MB
TAIL_LEAST = 12 * MB
TAIL_MAX = 24 * MB
"""The tail grows from the least to the most, then its older part is dropped."""
RECENT_BYTES = 32 * 1024
RECENT_LINES = 200
"""The end of the output, which is kept in memory too."""
QUOTED_BYTES = 4 * 1024
QUOTED_LINES = 20
"""Most of a rank's output that one fact quotes."""
EXCEPTION_MOST = 1_000
ALL_QUOTES_MOST = 512 * 1024
"""Most output that all facts of an agent quote together. In JSON a byte may become six."""

_GAP = re.compile(rb"\n\[everstep(?:: (\d{20}) bytes left out|(\d{20}) ([0-9a-f]{16}))\]\n")
"""The second form stands there while the tail is moved up: it says too where the tail is until then."""
_GAP_SIZE = len(b"\n[everstep: %020d bytes left out]\n" % 0)
_READS_MOST = 10
"""Tries to read a log while its tail is moved. It is moved once in megabytes of output."""


class LogFile:
    """The log of one rank, open for writing."""

    tail_max: ClassVar[int] = TAIL_MAX
    """Bytes behind the head; an agent sets it before it starts any rank."""

    def __init__(
        self,
        path: Path,
        *,
        head: int = HEAD,
        tail_least: int | None = None,
        most: int | None = None,
    ) -> None:
        most = most or self.tail_max
        # So much that it fits between the gap and where it was: a move overwrites none of it.
        tail_least = min(tail_least or most // 2, (most - _GAP_SIZE) // 2)
        self.path = path
        self.problem: str | None = None  # the first reason why something could not be written
        self.written = 0  # bytes by the rank, those not kept included
        self._head, self._tail_least, self._most = head, tail_least, most
        self._size = 0
        self._dropped = 0
        self._recent = b""
        self._file = -1
        self._marks: Marks | None = None
        try:
            permissions.below(_home(path), path.parent)
            self._file = files.handle(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, within=_home(path))
            self._marks = Marks(path)
        except OSError as error:
            self.problem = str(error)

    def write(self, chunk: bytes) -> None:
        if self._marks is not None:
            self._marks.add(self.written)
        self.written += len(chunk)
        self._recent = (self._recent + chunk[-RECENT_BYTES:])[-RECENT_BYTES:]
        if self._file < 0:
            return
        try:
            while chunk:  # a disk that gets full writes a part, and returns its length
                done = os.pwrite(self._file, chunk, self._size)
                self._size += done
                chunk = chunk[done:]
            if self._size > self._head + self._most:
                self._drop_the_middle()
        except OSError as error:
            self.problem = self.problem or str(error)

    def _drop_the_middle(self) -> None:
        """Keep the head and the newest `tail_least` bytes, which move up to the gap.

        A read meanwhile, or after the agent was killed meanwhile, finds every byte (`_layout`).
        """
        start = self._size - self._tail_least
        tail_began = self._head + (_GAP_SIZE if self._dropped else 0)
        dropped = self._dropped + start - tail_began
        moves = b"\n[everstep%020d %016x]\n" % (dropped, start)
        os.pwrite(self._file, moves, self._head)
        to = self._head + _GAP_SIZE
        while start < self._size:
            block = os.pread(self._file, min(MB, self._size - start), start)
            os.pwrite(self._file, block, to)
            start += len(block)
            to += len(block)
        os.ftruncate(self._file, to)
        self._size, self._dropped = to, dropped
        os.pwrite(self._file, b"\n[everstep: %020d bytes left out]\n" % dropped, self._head)
        if self._marks is not None:
            self._marks.leave_out(self._head, self._head + self._dropped)

    def recent_lines(self) -> list[str]:
        """The newest lines, at most 200 and 32 KB."""
        return self._recent.decode(errors="replace").splitlines()[-RECENT_LINES:]

    def newest(self, count: int) -> bytes:
        """The last bytes written, as far as they are in memory."""
        return self._recent[-count:] if count > 0 else b""

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _home(log: Path) -> Path:
    """The folder of the pod, whose ranks may write to it too."""
    return log.parents[1]


def read(path: Path, offset: int, limit: int, *, head: int = HEAD) -> tuple[bytes, int, int]:
    """`(bytes, offset of the first, offset behind the last)`; below 0 the offset counts from the end.

    An offset in the gap is that of the first byte behind it.
    """
    with files.opened(path, within=_home(path)) as file:
        handle = file.fileno()
        layout = _layout(handle, head)
        for _ in range(_READS_MOST):
            piece = _read_by(layout, handle, offset, limit, head=head)
            before, layout = layout, _layout(handle, head)
            if (before.dropped, before.tail_at) == (layout.dropped, layout.tail_at):
                return piece
        return _read_by(layout, handle, offset, limit, head=head)


class Layout(NamedTuple):
    """Where the bytes of a log are in its file."""

    dropped: int
    tail_at: int  # where the bytes behind the gap begin
    size: int


def _layout(handle: int, head: int) -> Layout:
    gap, size = _GAP.match(os.pread(handle, _GAP_SIZE, head)), os.fstat(handle).st_size
    if gap is None:
        return Layout(0, head, size)
    moved_from = int(gap[3], 16) if gap[3] else size
    is_moved = size <= moved_from  # and cut off, or there was no move
    return Layout(int(gap[1] or gap[2]), head + _GAP_SIZE if is_moved else moved_from, size)


def _read_by(
    layout: Layout, handle: int, offset: int, limit: int, *, head: int
) -> tuple[bytes, int, int]:
    behind_gap = head + layout.dropped
    written = layout.size if layout.size <= head else behind_gap + layout.size - layout.tail_at
    at = min(offset if offset >= 0 else max(0, written + offset), written)
    if head <= at < behind_gap:
        at = behind_gap
    if at < head:
        data = os.pread(handle, min(limit, head - at), at)
    else:
        data = os.pread(handle, limit, at - behind_gap + layout.tail_at)
    return data, at, at + len(data)


# -- What a fact quotes -----------------------------------------------------------------------------

_TRACEBACK = re.compile(r"^(.*?)Traceback \(most recent call last\):\s*$")
_TOP = re.compile(r'^\s+File ".*", line \d+, in (?:<module>|_run_module_as_main)\s*$')
_SURVIVED = ("Exception ignored ", "Exception in thread ", "--- Logging error ---")
"""What is printed before a traceback that ends nothing, or a thread alone."""
UNCAUGHT = 1
"""The code with which Python ends on an exception that nothing caught."""


def last_exception(lines: list[str], code: int | None) -> str | None:
    """The exception that ended the process, as `ValueError: no such thing`.

    It is the last one whose traceback begins at the top of the main thread. What was logged and survived,
    what ended another thread and what was ignored at the end is none, nor is any with another exit code.
    """
    if code != UNCAUGHT:
        return None
    for start in reversed(range(len(lines))):
        traceback = _TRACEBACK.match(lines[start])
        if traceback is not None and _is_of_main_thread(lines, start, traceback[1]):
            return _raised(lines[start + 1 :], traceback[1])
    return None


def _is_of_main_thread(lines: list[str], start: int, prefix: str) -> bool:
    before, frames = (lines[start - 1 : start] or [""])[0], lines[start + 1 : start + 2]
    is_survived = before.removeprefix(prefix).startswith(_SURVIVED)
    return not is_survived and any(_TOP.match(one.removeprefix(prefix)) for one in frames)


def _raised(lines: list[str], prefix: str) -> str | None:
    """The exception that ends a traceback: the first of these lines without an indent."""
    for line in lines:
        text = line.removeprefix(prefix)
        if text and not text[0].isspace():
            return text.strip()[:EXCEPTION_MOST]
    return None


def last_output(lines: list[str]) -> str:
    """The last of these lines, as much of them as a fact may hold."""
    text = "\n".join(lines[-QUOTED_LINES:]).encode()[-QUOTED_BYTES:]
    return text.decode(errors="ignore")


def bounded(facts: list[wire.FactSeen]) -> list[wire.FactSeen]:
    """The same facts; the oldest ones lose their quotes of output where all quote too much."""
    left = ALL_QUOTES_MOST
    facts_kept: list[wire.FactSeen] = []
    for fact in reversed(facts):
        left -= len(fact["details"].get("log", ""))
        if left < 0:
            fact = fact.copy()  # noqa: PLW2901  # another thread may be reading the old list
            fact["details"] = {**fact["details"], "log": ""}
        facts_kept.append(fact)
    return facts_kept[::-1]


LINE_MOST = 300


def last_line(lines: list[str]) -> str | None:
    """The last line that is not blank."""
    texts = (line.strip() for line in reversed(lines))
    return next((line[:LINE_MOST] for line in texts if line), None)


# -- When it was written --------------------------------------------------------------------------
# Marks beside the log, each an offset and the time from which it counts. They are for people who read logs of
# several ranks; nothing is decided by them. What cannot be written is left out.

MARKS_EVERY_S, SMALL_MARKS_EVERY_S = 0.1, 1.0
"""Least time between two marks, and between two with less of the log between them than a mark is long: marks
must not outgrow their log."""

_MOST = 64 * 1024 * 1024
_MORE = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_MARK = struct.Struct("<Qd")


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
            os.close(files.handle(self._path, _MORE | os.O_TRUNC))

    def add(self, offset: int) -> None:
        """Bytes from here on are written now."""
        now = self._clock()
        is_small = offset - self._offset < _MARK.size
        if 0 <= now - self._newest < (SMALL_MARKS_EVERY_S if is_small else MARKS_EVERY_S):
            return
        self._newest, self._offset = now, offset
        with suppress(OSError), os.fdopen(files.handle(self._path, _MORE), "ab") as file:
            file.write(_MARK.pack(offset, now))

    def leave_out(self, begin: int, end: int) -> None:
        """The log has lost these bytes; their marks go too, up to the one that counts behind them."""
        with suppress(OSError):
            marks = _read_marks(self._path)
            behind = bisect.bisect_right(marks, (end, float("inf"))) - 1
            remaining = [mark for at, mark in enumerate(marks) if mark[0] < begin or at >= behind]
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
    raw = files.read(path, _MOST)
    whole = len(raw) - len(raw) % _MARK.size
    return list(_MARK.iter_unpack(raw[:whole]))
