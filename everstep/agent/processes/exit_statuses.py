"""How processes ended that others wait for, such as those below a shell.

A process handle shows the exit status of its process once that has been waited for, on Linux 6.15 and newer.
An older kernel shows none, and how such a process ended stays unknown.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable

from everstep.agent.processes import proc

HANDLES_MOST = 256
"""The most processes that are held: each takes one of the agent's open files, often 1,024 at most."""

# `struct pidfd_info` in its first version, and the request for it, _IOWR(0xFF, 11, struct pidfd_info).
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_HAS_STATUS = 1 << 3

Identity = tuple[int, int]


class ExitStatuses:
    """Handles of processes, from before they end. Not for several threads at a time."""

    def __init__(self) -> None:
        self._handles: dict[Identity, int] = {}

    def hold(self, processes: Iterable[proc.Process]) -> None:
        """Hold those of the processes for which another process will wait."""
        for process in processes:
            is_child = process.parent == os.getpid()
            if not is_child and process.identity not in self._handles:
                self._hold(process)

    def take(self) -> list[tuple[Identity, int]]:
        """How those ended that have ended since the last call; the status of a signal is negative."""
        statuses = []
        for identity, handle in [*self._handles.items()]:
            status = _status(handle)
            if status is not None:
                statuses.append((identity, status))
                os.close(self._handles.pop(identity))
        return statuses

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])

    def _hold(self, process: proc.Process) -> None:
        if len(self._handles) == HANDLES_MOST:
            return
        with contextlib.suppress(OSError):  # it has ended, or there are too many open files
            handle = os.pidfd_open(process.pid)
            now = proc.find(process.pid)
            if now is not None and now.started == process.started and _is_shown(handle):
                self._handles[process.identity] = handle
            else:
                os.close(handle)


def _is_shown(handle: int) -> bool:
    """Whether the kernel answers the request at all."""
    try:
        _info(handle)
    except OSError:
        return False
    return True


def _status(handle: int) -> int | None:
    with contextlib.suppress(OSError):
        info = _info(handle)
        if info[0] & _HAS_STATUS:
            return os.waitstatus_to_exitcode(info[-1])
    return None


def _info(handle: int) -> tuple[int, ...]:
    answer = bytearray(_INFO.size)
    _INFO.pack_into(answer, 0, _HAS_STATUS, *[0] * 13)
    fcntl.ioctl(handle, _GET_INFO, answer)
    return _INFO.unpack(answer)
