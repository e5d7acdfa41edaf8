"""Copies of snapshots of ranks in other pods. They serve a start after those pods are gone.

The agent of a rank sends its snapshots in parts, in their order. A copy counts once its last part has come
and its checksum fits. Two memories for each rank: while one is written the other one stays whole. Copies that
are pinned have more, where there is room.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib

from everstep.agent.memory.held_memory import HeldMemory
from everstep.agent.memory.snapshots import age_s, snapshot_row
from everstep.free_memory import free_bytes
from everstep.protocol import rank_memory, wire
from everstep.protocol.rank_memory import PAGE, SnapshotHeader

SPARE_SHARE = 0.1
"""This share of the memory stays free: a pod over its limit is killed, with the ranks in it."""
SPARE_FOR_PINNED = 0.5
"""This share stays free where pinned copies need more than two memories."""
IDLE_MOST = 16
"""A memory that so many copies in a row did not need is released."""
MB = 1024 * 1024


class OutOfOrder(Exception):
    """The part does not follow the one before: the sender begins again."""


class NoRoom(OSError):
    """There is no memory for a copy; the message says how much is needed and how much is free."""


class Copy:
    """Memory with the layout of a snapshot, filled part by part."""

    def __init__(
        self, header: wire.CopyHeader, *, run: int = 0, spare_share: float = SPARE_SHARE
    ) -> None:
        self.header = header
        self.run = run  # generation of the newest run that sent it
        self.size = PAGE + header["content_bytes"] + header["content_bytes"] // 16
        self._refuse_without_room(spare_share)
        self.memory = HeldMemory(os.memfd_create("everstep-snapshot"))
        try:
            os.posix_fallocate(self.memory.handle, 0, self.size)
        except OSError as error:
            self.memory.close()
            raise NoRoom(f"a copy needs {self.size / MB:.0f} MB: {error.strerror}") from None
        self._begin(header)

    def _refuse_without_room(self, spare_share: float) -> None:
        free = free_bytes()
        if free is not None and self.size > free * (1 - spare_share):
            raise NoRoom(f"a copy needs {self.size / MB:.0f} MB, and {free / MB:.0f} MB are free")

    def _begin(self, header: wire.CopyHeader) -> None:
        self.header, self.received, self.checksum, self.is_whole = header, 0, 0, False

    def has_room(self, header: wire.CopyHeader) -> bool:
        return PAGE + header["content_bytes"] <= self.size

    def begin_again(self, header: wire.CopyHeader) -> None:
        """Take the first part of another copy from now on."""
        self.memory.drop_snapshot()
        self._begin(header)

    def is_whole_at(self, step: int | None) -> bool:
        return self.is_whole and self.header["step"] == step

    def is_of(self, header: wire.CopyHeader) -> bool:
        names = ("rank", "world", "step", "generation", "content_bytes")
        return all(self.header[name] == header[name] for name in names)  # type: ignore[literal-required]  # names of its fields

    def add(self, content: memoryview) -> None:
        """Add the next part."""
        if self.received + len(content) > self.header["content_bytes"]:
            raise ValueError("the copy has more bytes than its header says")
        write_all(self.memory.handle, content, PAGE + self.received)
        self.checksum = zlib.crc32(content, self.checksum)
        self.received += len(content)

    def finish(self, checksum: int | None) -> None:
        """Declare the copy whole. Raises ValueError if it is not what was sent."""
        if checksum != self.checksum:
            self.begin_again(self.header)
            raise ValueError(f"the copy of step {self.header['step']} arrived damaged")
        page = bytearray(PAGE)
        snapshot = snapshot_of(self.header)
        rank_memory.finish_snapshot(page, snapshot)
        rank_memory.add_checksum(page, self.checksum)
        os.pwrite(self.memory.handle, page, 0)
        self.header, self.is_whole = {**self.header, "checksum": checksum}, True


def write_all(handle: int, content: memoryview, at: int) -> None:
    while content:
        written = os.pwrite(handle, content, at)
        content, at = content[written:], at + written


def snapshot_of(header: wire.CopyHeader) -> SnapshotHeader:
    """The header of a snapshot, by the clock of this machine."""
    return SnapshotHeader(
        step=header["step"],
        generation=header["generation"],
        rank=header["rank"],
        world=header["world"],
        index_bytes=header["index_bytes"],
        content_bytes=header["content_bytes"],
        at=time.monotonic() - header["age_s"],
        checksum=header["checksum"],
    )


class Copies:
    """All copies that this agent holds for others. For any thread; `state` waits for none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, list[Copy]] = {}  # by rank, at most BUFFERS_MOST of each
        # By rank: copies in a row for which there was a memory too many.
        self._idle: dict[int, int] = {}
        self._state: list[wire.SnapshotSeen] = []

    def state(self) -> list[wire.SnapshotSeen]:
        """The whole ones."""
        return self._state

    def take(self, part: wire.CopyPart, content: memoryview) -> bool:
        """Take a part; returns whether it made its copy whole. A part of a whole copy is taken for repeated.

        Raises OutOfOrder for a part that does not follow the one before, ValueError for one that cannot be,
        NoRoom.
        """
        with self._lock:
            copy = self._copy_for(part)
            copy.run = part["run"]
            if copy.is_whole:
                return False
            if part["offset"] != copy.received:
                raise OutOfOrder(f"the copy has {copy.received} bytes, not {part['offset']}")
            copy.add(content)
            if copy.received < part["content_bytes"]:
                return False
            copy.finish(part["checksum"])
            self._check()
            return True

    def _copy_for(self, part: wire.CopyPart) -> Copy:
        """The copy that the part belongs to; a first part begins one, in the place of the oldest."""
        held = self._held.setdefault(part["rank"], [])
        there = next((copy for copy in held if copy.is_of(part)), None)
        if there is not None and (there.is_whole or part["offset"]):
            return there
        if part["offset"]:
            raise OutOfOrder("the copy begins with its first part")
        newest = part["step"] if part["newest"] is None else part["newest"]
        for left in held:
            # Its script has gone back since, say after a spike of the loss.
            if left.is_whole and (
                left.header["step"] > newest or left.header["step"] == part["step"]
            ):
                left.begin_again(left.header)
        place = self._place_for(part, held)
        if place is None:
            return held[-1]
        if place.has_room(part):
            place.begin_again(part)
            self._check()
            return place
        held.remove(place)
        place.memory.close()
        self._check()
        held.append(Copy(part))
        return held[-1]

    def _place_for(self, part: wire.CopyPart, held: list[Copy]) -> Copy | None:
        """The copy to overwrite: the oldest that is not pinned. None: a new one was added as the last."""
        if len(held) < rank_memory.BUFFERS and all(copy.is_whole for copy in held):
            held.append(Copy(part))
            return None
        steps = [copy.header["step"] if copy.is_whole else -1 for copy in held]
        free = [held[n] for n in rank_memory.overwritable(steps, part["pinned"])]
        self._release_idle(part["rank"], held, free)
        if free:
            return free[0]
        if len(held) < rank_memory.BUFFERS_MOST:
            with contextlib.suppress(NoRoom):
                held.append(Copy(part, spare_share=SPARE_FOR_PINNED))
                return None
        return held[rank_memory.overwritable(steps, ())[0]]

    def _release_idle(self, rank: int, held: list[Copy], free: list[Copy]) -> None:
        """Release a copy that pins needed, and have not needed for a while."""
        is_idle = len(held) > rank_memory.BUFFERS and len(free) > 1
        self._idle[rank] = self._idle.get(rank, 0) + 1 if is_idle else 0
        if self._idle[rank] > IDLE_MOST:
            self._idle[rank] = 0
            released = free.pop(0)
            held.remove(released)
            released.memory.close()
            self._check()

    def keep_only(self, step: int | None, *, run: int) -> None:
        """Drop what earlier runs than this one sent, but for the whole copies of this step.

        As for snapshots: what is newer belongs to a training that is left. An agent whose ranks started
        sooner may have sent something of this run already.
        """
        with self._lock:
            for rank, copies in list(self._held.items()):
                stay = [copy for copy in copies if copy.run >= run or copy.is_whole_at(step)]
                for copy in copies:
                    if copy not in stay:
                        copy.memory.close()
                self._held[rank] = stay
            self._check()

    def header(self, rank: int, step: int) -> wire.CopyHeader | None:
        """The header of the whole copy of this snapshot, with its age now."""
        with self._lock:
            copy = self._whole(rank, step)
            if copy is None or (snapshot := copy.memory.snapshot) is None:
                return None
            return {**copy.header, "age_s": age_s(snapshot)}

    def read(self, rank: int, step: int, offset: int) -> bytes | None:
        """A part of a whole copy."""
        with self._lock:
            copy = self._whole(rank, step)
            if copy is None:
                return None
            size = min(wire.COPY_PART_MOST, copy.header["content_bytes"] - offset)
            return os.pread(copy.memory.handle, max(0, size), PAGE + offset)

    def _whole(self, rank: int, step: int) -> Copy | None:
        copies = self._held.get(rank, ())
        return next((copy for copy in copies if copy.is_whole_at(step)), None)

    def _check(self) -> None:
        """Publish what is whole now."""
        whole = [c for copies in self._held.values() for c in copies if c.is_whole]
        headers = [copy.memory.snapshot for copy in whole]
        self._state = [snapshot_row(header) for header in headers if header is not None]
