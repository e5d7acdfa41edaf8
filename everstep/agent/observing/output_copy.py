"""Copies what ranks print to the agent's own standard output, which in a container is the container's log.

Each line names its generation and rank: `[g3 rank 1] step 40`. A thread writes, as a log that is not read on
may block. What it cannot take in time is left out, and a line says how much.
"""

from __future__ import annotations

import os
import threading
from collections import deque

MOST = 1024 * 1024
"""Bytes that wait to be written."""
LINE_MOST = 16 * 1024
"""Bytes of a line: a longer one is copied in several."""


class OutputCopy:
    """Copies the output of all ranks of an agent to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_on, name="output copy", daemon=True).start()

    def add(self, line: bytes) -> None:
        """Never waits for the log."""
        with self._changed:
            if self._size + len(line) > MOST:
                self._left_out += len(line)
                return
            if self._left_out:
                line = b"[everstep: %d bytes left out]\n%s" % (self._left_out, line)
                self._left_out = 0
            self._waiting.append(line)
            self._size += len(line)
            self._changed.notify()

    def flush(self, within_s: float) -> None:
        """Wait until all is written, for so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, within_s)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                lines = b"".join(self._waiting)
                self._waiting.clear()
            self._write(lines)
            with self._changed:
                self._size -= len(lines)
                self._changed.notify()

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError:  # closed: the ranks go on, and their own logs have everything
                return


class RankCopy:
    """The lines of one rank on their way there."""

    def __init__(self, copy: OutputCopy, *, generation: int, rank: int) -> None:
        self._copy = copy
        self._prefix = b"[g%d rank %d] " % (generation, rank)
        self._begun = b""

    def write(self, chunk: bytes) -> None:
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        for line in lines:
            self._copy.add(self._prefix + line + b"\n")
        while len(self._begun) > LINE_MOST:
            self._copy.add(self._prefix + self._begun[:LINE_MOST] + b"\n")
            self._begun = self._begun[LINE_MOST:]

    def end(self) -> None:
        """Copy a last line that has no end."""
        if self._begun:
            self.write(b"\n")
