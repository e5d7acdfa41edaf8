"""The connections of a process group, which another thread can cut.

An operation that waits for a rank which is gone waits until its time limit, unless its connections end.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

HANDLES = Path("/proc/self/fd")


class OwnSockets:
    """The connections over IP that were made while they were recorded, by their inodes."""

    def __init__(self) -> None:
        # While connections are recorded: those that were there before.
        self._before: frozenset[int] | None = None
        self._inodes: frozenset[int] = frozenset()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the connections that are made meanwhile."""
        before = self._before = frozenset(_connections())
        try:
            yield
        finally:
            self._inodes, self._before = frozenset(_connections()) - before, None

    def cut(self) -> None:
        """End them. For any thread; the handles stay open, so that no other file gets their numbers."""
        before = self._before
        for inode, handle in _connections().items():
            is_own = inode in self._inodes if before is None else inode not in before
            if is_own:
                _shut_down(handle, inode)


def _connections() -> dict[int, int]:
    """The connections over IP of this process: the inode and the handle of each."""
    handles = {}
    for name in os.listdir(HANDLES):  # noqa: PTH208  # a third of the time
        with contextlib.suppress(OSError, ValueError):
            target = os.readlink(HANDLES / name)  # noqa: PTH115  # a text, not a path
            if target.startswith("socket:["):
                handles[int(target[len("socket:[") : -1])] = int(name)
    return {inode: handle for inode, handle in handles.items() if _is_connected(handle, inode)}


def _is_connected(handle: int, inode: int) -> bool:
    with contextlib.suppress(OSError), _duplicate(handle, inode) as one:
        if one.family in (socket.AF_INET, socket.AF_INET6):
            one.getpeername()
            return True
    return False


def _shut_down(handle: int, inode: int) -> None:
    with contextlib.suppress(OSError), _duplicate(handle, inode) as one:
        one.shutdown(socket.SHUT_RDWR)


def _duplicate(handle: int, inode: int) -> socket.socket:
    """A socket of our own for the handle. Raises OSError if that became another file meanwhile."""
    duplicate = socket.socket(fileno=os.dup(handle))
    if os.fstat(duplicate.fileno()).st_ino != inode:
        duplicate.close()
        raise OSError("it is another file now")
    return duplicate
