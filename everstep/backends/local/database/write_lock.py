"""The write lock of the books: one process at a time, and none waits for long for a stopped one.

If a process is stopped in the middle of a transaction, it keeps the lock of the database, which cannot be
taken away. So another lock is around it, which shows its holder. A holder that is stopped gets SIGCONT, so
that it ends its transaction; if that does not help it is killed, which is safe at any moment.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.processes import proc

LOG = logging.getLogger(__name__)

LEASE_S = 3.0
"""Longest time that a stopped process delays the others."""
PATIENCE_S = LEASE_S / 3
"""Time that a holder may be stopped: a debugger stops a process for a moment."""
SOON_S = 0.1
"""Wait after which the holder is looked at; a transaction takes a millisecond."""
WAIT_S = 10.0
PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.02)

_FLOCK = struct.Struct("hhqqi")  # as Linux has it: type, whence, start, length, pid


class WriteLock:
    """The lock beside the books. One per file and process: the kernel's lock does not separate threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = threading.Lock()
        self._handle = -1

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock inside the block. Raises OSError if it does not become free."""
        with self._threads:
            handle = self._opened()
            self._take(handle)
            try:
                yield
            finally:
                fcntl.lockf(handle, fcntl.LOCK_UN)

    def _opened(self) -> int:
        """The open lock file. It is opened once: closing it would release the locks of other threads."""
        try:
            is_same = self._handle >= 0 and os.path.samestat(
                os.fstat(self._handle), self._path.stat()
            )
        except FileNotFoundError:
            is_same = False
        if not is_same:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if self._handle >= 0:
                os.close(self._handle)
            self._handle = handle
        return self._handle

    def _take(self, handle: int) -> None:
        began, tries, holder = time.monotonic(), 0, Holder()
        while not _try_to_take(handle):
            now = time.monotonic()
            if now - began > WAIT_S:
                raise TimeoutError(f"process {_pid_of_holder(handle)} does not let go of it")
            if now - began > SOON_S:
                holder.check(_pid_of_holder(handle), now)
            time.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1


@dataclass(slots=True)
class Holder:
    """The holder that this process waits for, and since when it is stopped."""

    process: proc.Process | None = None
    since: float = 0.0
    is_woken: bool = False  # it got SIGCONT

    def check(self, pid: int, now: float) -> None:
        """Look at the process that holds the lock now; wake or kill it if it has been stopped for long."""
        process = proc.find(pid)
        if (
            process is None
            or not process.is_stopped
            or self.process is None
            or process != self.process
        ):
            self.process, self.since, self.is_woken = process, now, False
        elif now - self.since > PATIENCE_S and not self.is_woken:
            self._send(process, signal.SIGCONT, "it goes on now")
            self.is_woken = True
        elif now - self.since > 2 * PATIENCE_S:
            self._send(process, signal.SIGKILL, "it cannot go on, and is ended")

    def _send(self, process: proc.Process, number: signal.Signals, what: str) -> None:
        LOG.warning("process %d was stopped while it wrote the database; %s", process.pid, what)
        proc.send(process, number)


def _try_to_take(handle: int) -> bool:
    """Take the lock if it is free; return whether it was."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _pid_of_holder(handle: int) -> int:
    """The PID of the process that has the lock; 0 if none has it, or one in another PID namespace."""
    if sys.platform != "linux":
        return 0
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, query))
    return 0 if kind == fcntl.F_UNLCK else int(pid)


_locks: dict[Path, WriteLock] = {}


def of(path: Path) -> WriteLock:
    """The lock of these books, one for the whole process."""
    return _locks.setdefault(path.absolute(), WriteLock(path.with_name(f"{path.name}.turn")))
