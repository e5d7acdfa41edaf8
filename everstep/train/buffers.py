"""The memory of a rank's snapshots: two buffers, written in turn, and more where some are pinned."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from everstep.free_memory import free_bytes
from everstep.protocol import rank_memory
from everstep.protocol.rank_memory import PAGE, SnapshotHeader
from everstep.train.link import Link
from everstep.train.states import Flat, aligned, unflattened

MB = 1024 * 1024
SPARE_SHARE = 0.1
"""This share of the memory stays free: a pod over its limit is killed."""

SPARE_FOR_PINNED = 0.5
"""This share stays free where pinned snapshots need more than two buffers."""
IDLE_MOST = 16
"""A buffer that so many snapshots in a row did not need is released. To make one takes training time."""

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
    def made(
        cls, content_bytes: int, *, shares: int = 1, spare_share: float = SPARE_SHARE
    ) -> Buffer:
        """A new one with room for this content, and a little more. Raises MemoryFull.

        `shares`: so many ranks may take as much at the same moment. `spare_share`: of the memory stays free.
        """
        room = PAGE + aligned(content_bytes + content_bytes // 16, PAGE)
        free = free_bytes()
        if free is not None and room * shares > free * (1 - spare_share):
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


class Buffers:
    """The buffers of a rank, by the index under which the agent holds each."""

    def __init__(
        self, held: Sequence[Buffer], link: Link, *, shares: int, note: Callable[[str], None]
    ) -> None:
        self._by_index = dict(enumerate(held))
        self._link, self._shares, self._note = link, shares, note
        self._idle = 0  # snapshots in a row for which there was one too many

    @property
    def held(self) -> list[Buffer]:
        return [*self._by_index.values()]

    def drop_unless_earlier(self, step: int, buffer: Buffer) -> None:
        """Drop the other snapshots that are not of an earlier step: the script has gone back since.

        Before this step is written: a kill in between must not leave a later one as the newest.
        """
        for other in self.held:
            if other is not buffer and other.step >= step:
                other.drop()

    def for_content(self, content_bytes: int, *, pinned: Collection[int]) -> Buffer:
        """The buffer to overwrite, or a new one in its place if it is too small.

        Raises MemoryFull, or OSError where the agent does not take the new one.
        """
        index = self._index(content_bytes, pinned)
        buffer = self._by_index.get(index)
        if buffer is not None and buffer.has_room(content_bytes):
            return buffer
        return self._hold(index, Buffer.made(content_bytes, shares=self._shares))

    def _index(self, content_bytes: int, pinned: Collection[int]) -> int:
        """The index of the oldest one that is not pinned; of one more where there are too few."""
        if len(self._by_index) < rank_memory.BUFFERS:
            return self._unused_index()
        indexes, steps = [*self._by_index], [buffer.step for buffer in self.held]
        free = [indexes[n] for n in rank_memory.overwritable(steps, pinned)]
        self._release_idle(free)
        if free:
            return free[0]
        if len(indexes) < rank_memory.BUFFERS_MOST:
            try:
                return self._made_for_pinned(content_bytes)
            except (MemoryFull, OSError) as error:
                self._note(f"keeps its newest two snapshots and no older one: {error}")
        return indexes[rank_memory.overwritable(steps, ())[0]]

    def _made_for_pinned(self, content_bytes: int) -> int:
        """The index of one more. Raises MemoryFull, or OSError."""
        index = self._unused_index()
        spare = SPARE_FOR_PINNED
        self._hold(index, Buffer.made(content_bytes, shares=self._shares, spare_share=spare))
        return index

    def _release_idle(self, free: list[int]) -> None:
        """Release one that pins needed, and have not needed for a while."""
        is_idle = len(self._by_index) > rank_memory.BUFFERS and len(free) > 1
        self._idle = self._idle + 1 if is_idle else 0
        if self._idle > IDLE_MOST:
            self._idle, index = 0, free.pop(0)
            self._by_index.pop(index).close()
            with contextlib.suppress(OSError):
                self._link.release(index)

    def _unused_index(self) -> int:
        return next(n for n in range(rank_memory.BUFFERS_MOST) if n not in self._by_index)

    def _hold(self, index: int, new: Buffer) -> Buffer:
        """Have the agent hold the new one, in place of what is there. Raises OSError."""
        try:
            self._link.keep(index, new.handle)
        except OSError:
            new.close()
            raise
        if (before := self._by_index.get(index)) is not None:
            before.close()
        self._by_index[index] = new
        return new
