"""The log of a rank: one file that never grows beyond a bound. `LogFile` writes it, `read` reads it.

    | head: the first 8 MB | gap: a line with the number of bytes left out | tail: the newest 12 to 24 MB |

There is no gap until something is left out. An offset counts the bytes that the rank wrote, whether they are
still in the file or not. What cannot be written is dropped: a full disk must not stop the training.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar, NamedTuple

from everstep.agent.observing.log_times import TimeStamps
from everstep.agent.storage import files, permissions

MB = 1024 * 1024
HEAD = 8 * MB
TAIL_LEAST = 12 * MB
TAIL_MAX = 24 * MB
"""The tail grows from the least to the most, then its older part is dropped."""
RECENT_BYTES = 32 * 1024
RECENT_LINES = 200
"""The end of the output, which is kept in memory too."""
_GAP = b"\n[everstep: %020d bytes left out]\n"
_GAP_OF_MOVE = b"\n[everstep%020d %016x]\n"
"""The gap while the tail is moved up to it. The second number is where the tail is until then."""
_GAP_SIZE = len(_GAP % 0)
_ANY_GAP = rb"\n\[everstep(?:: (\d{20}) bytes left out|(\d{20}) ([0-9a-f]{16}))\]\n"
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
        # Small enough that a move ends before the place that it reads from begins. An interrupted one loses
        # nothing.
        tail_least = min(tail_least or most // 2, (most - _GAP_SIZE) // 2)
        self.path = path
        self.problem: str | None = None  # the first reason why something could not be written
        self.written = 0  # bytes by the rank, those not kept included
        self._head, self._tail_least, self._most = head, tail_least, most
        self._size = 0  # of the file
        self._dropped = 0  # bytes left out at the gap
        # A move is over, but the disk was too full to write its last gap.
        self._has_gap_of_move = False
        self._recent = b""
        self._file = -1
        self._stamps: TimeStamps | None = None
        try:
            permissions.ensure_below(_home(path), path.parent)
            self._file = files.handle(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, within=_home(path))
            self._stamps = TimeStamps(path)
        except OSError as error:
            self.problem = str(error)

    def write(self, chunk: bytes) -> None:
        if self._stamps is not None:
            self._stamps.add(self.written)
        self.written += len(chunk)
        self._recent = (self._recent + chunk[-RECENT_BYTES:])[-RECENT_BYTES:]
        if self._file < 0:
            return
        try:
            if self._has_gap_of_move:  # a file that grows would look as if the move were under way
                self._write_gap()
            while chunk:  # a disk that gets full writes a part, and returns its length
                done = os.pwrite(self._file, chunk, self._size)
                self._size += done
                chunk = chunk[done:]
            if self._size > self._head + self._most:
                self._drop_the_middle()
        except OSError as error:
            self.problem = self.problem or str(error)

    def _drop_the_middle(self) -> None:
        """Leave out the older part of the tail: the newest `tail_least` bytes move up to the gap.

        While they move, the gap says where they were. They are whole there until the file is cut off: `read`
        finds every byte in the middle of a move, or after the agent was killed in one (`_layout`).
        """
        gap_end = self._head + _GAP_SIZE
        tail_at = gap_end if self._dropped else self._head
        source, target = self._size - self._tail_least, gap_end
        dropped = self._dropped + source - tail_at
        os.pwrite(self._file, _GAP_OF_MOVE % (dropped, source), self._head)
        while source < self._size:
            block = os.pread(self._file, min(MB, self._size - source), source)
            os.pwrite(self._file, block, target)
            source += len(block)
            target += len(block)
        os.ftruncate(self._file, target)
        self._size, self._dropped, self._has_gap_of_move = target, dropped, True
        if self._stamps is not None:
            self._stamps.leave_out(self._head, self._head + self._dropped)
        self._write_gap()

    def _write_gap(self) -> None:
        os.pwrite(self._file, _GAP % self._dropped, self._head)
        self._has_gap_of_move = False

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


class Layout(NamedTuple):
    """Where the bytes of a log are in its file, behind the head."""

    dropped: int  # bytes left out at the gap
    tail_at: int  # where the tail begins: behind the gap, or where a move takes it from
    size: int  # of the file


def read(path: Path, offset: int, limit: int, *, head: int = HEAD) -> tuple[bytes, int, int]:
    """`(bytes, offset of the first, offset behind the last)`; below 0 the offset counts from the end.

    An offset in the gap is that of the first byte behind it. A read during which the tail moved is repeated.
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


def _layout(handle: int, head: int) -> Layout:
    gap, size = re.match(_ANY_GAP, os.pread(handle, _GAP_SIZE, head)), os.fstat(handle).st_size
    if gap is None:
        return Layout(dropped=0, tail_at=head, size=size)
    if gap[1]:
        return Layout(dropped=int(gap[1]), tail_at=head + _GAP_SIZE, size=size)
    # A move goes on, or an agent was killed in one. It is over once the file was cut off.
    moved_from = int(gap[3], 16)
    tail_at = head + _GAP_SIZE if size <= moved_from else moved_from
    return Layout(dropped=int(gap[2]), tail_at=tail_at, size=size)


def _read_by(
    layout: Layout, handle: int, offset: int, limit: int, *, head: int
) -> tuple[bytes, int, int]:
    behind_gap = head + layout.dropped  # the offset of the tail's first byte
    written = layout.size if layout.size <= head else behind_gap + layout.size - layout.tail_at
    at = min(offset if offset >= 0 else max(0, written + offset), written)
    if head <= at < behind_gap:
        at = behind_gap
    if at < head:
        data = os.pread(handle, min(limit, head - at), at)
    else:
        data = os.pread(handle, limit, layout.tail_at + at - behind_gap)
    return data, at, at + len(data)
