"""The memory of a rank's snapshots: two buffers, each written in turn."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import zlib
from typing import Any

from everstep.free_memory import free_bytes
from everstep.protocol import rank_memory
from everstep.protocol.rank_memory import PAGE, SnapshotHeader
from everstep.train.states import Flat, aligned, unflattened

MB = 1024 * 1024
SPARE_SHARE = 0.1
"""This share of the memory stays free: a pod over its limit is killed."""

PATIENT = 10
"""The niceness of a thread that must not take time from the training."""


class MemoryFull(Exception):
    """There is no room for a snapshot; the message says how much is needed and how much is free."""


class Buffer:
    """Memory without a name, for one snapshot. Its handle keeps it after the process ends."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._memory = mmap.mmap(handle, os.fstat(handle).st_size)
        self._summing: threading.Thread | None = None

    @classmethod
    def made(cls, content_bytes: int, *, shares: int = 1) -> Buffer:
        """A new one with room for this content, and a little more. Raises MemoryFull.

        `shares`: so many ranks may take as much at the same moment.
        """
        room = PAGE + aligned(content_bytes + content_bytes // 16, PAGE)
        free = free_bytes()
        if free is not None and room * shares > free * (1 - SPARE_SHARE):
            raise MemoryFull(f"it needs {room / MB:.0f} MB, and {free / MB:.0f} MB are free")
        handle = os.memfd_create("everstep-snapshot")
        try:
            # A page of a file with holes that finds no memory kills the process by SIGBUS.
            os.posix_fallocate(handle, 0, room)
            return cls(handle)
        except OSError as error:
            os.close(handle)
            raise MemoryFull(f"it needs {room / MB:.0f} MB: {error.strerror}") from None

    def drop(self) -> None:
        """Hold no snapshot any more."""
        if self._summing is not None:
            self._summing.join()
        rank_memory.drop_snapshot(self._memory)

    def has_room(self, content_bytes: int) -> bool:
        return PAGE + content_bytes <= len(self._memory)

    @property
    def snapshot(self) -> SnapshotHeader | None:
        """The whole snapshot that it holds."""
        return rank_memory.read_snapshot(self._memory)

    @property
    def step(self) -> int:
        """The step of its snapshot; -1: it holds none."""
        return -1 if (snapshot := self.snapshot) is None else snapshot.step

    def write(self, snapshot: SnapshotHeader, content: Flat) -> None:
        """Write the content, then declare it whole; its checksum follows while the training goes on."""
        if self._summing is not None:
            self._summing.join()
        rank_memory.begin_snapshot(self._memory)
        with memoryview(self._memory) as view, view[PAGE:] as place:
            content.write_into(place)
        rank_memory.finish_snapshot(self._memory, snapshot)
        self._summing = threading.Thread(target=self._add_checksum, args=(snapshot,), daemon=True)
        self._summing.start()

    def _add_checksum(self, snapshot: SnapshotHeader) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PATIENT)
        rank_memory.add_checksum(self._memory, self._checksum(snapshot))

    def is_intact(self, snapshot: SnapshotHeader) -> bool:
        """Whether the content fits the checksum, if the process lived long enough to compute one."""
        is_inside = PAGE + snapshot.content_bytes <= len(self._memory)
        return is_inside and snapshot.checksum in (None, self._checksum(snapshot))

    def _checksum(self, snapshot: SnapshotHeader) -> int:
        with memoryview(self._memory) as view, view[PAGE:][: snapshot.content_bytes] as content:
            return zlib.crc32(content)

    def read(self, snapshot: SnapshotHeader) -> Any:
        """The state, in memory of its own."""
        with memoryview(self._memory) as view, view[PAGE:][: snapshot.content_bytes] as content:
            return unflattened(content, snapshot.index_bytes)

    def close(self) -> None:
        if self._summing is not None:
            self._summing.join()
        self._memory.close()
        os.close(self.handle)
