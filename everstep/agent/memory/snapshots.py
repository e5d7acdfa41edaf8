"""The snapshots of a pod's ranks. The agent holds their memory, so that it outlives the rank."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.agent import clock
from everstep.agent.memory.held_memory import HeldMemory
from everstep.protocol import rank_memory, wire
from everstep.protocol.rank_memory import SnapshotHeader


class Saver(NamedTuple):
    """How a rank has its snapshot saved after its end: a command, its folder and its environment."""

    command: list[str]
    workdir: str
    env: dict[str, str]

    @classmethod
    def of(cls, how: Any, env: Mapping[str, str]) -> Saver:
        """As the rank wrote it. The process is no rank: it gets no token. Raises ValueError, KeyError."""
        command = [str(word) for word in how["command"]]
        private = (rank_memory.SOCKET_FOLDER, rank_memory.TOKEN, wire.RANK_FOLDER)
        plain = {name: value for name, value in env.items() if name not in private}
        return cls(command, str(how["workdir"]), plain)


class Snapshots:
    """Everything that is held, by rank and buffer. Memory is released once no start can resume from it."""

    def __init__(self) -> None:
        self._held: dict[int, dict[int, HeldMemory]] = {}
        # Ranks that begin from a snapshot when they are ordered to.
        self.restoring: set[int] = set()
        self.savers: dict[int, Saver] = {}

    def hold(self, rank: int, index: int, memory: HeldMemory) -> None:
        """Hold this memory as a buffer of the rank, in place of what it had there."""
        buffers = self._held.setdefault(rank, {})
        if (before := buffers.pop(index, None)) is not None:
            before.close()
        buffers[index] = memory

    def release(self, rank: int, index: int) -> None:
        """Release a buffer that the rank does not need any more."""
        if (memory := self._held.get(rank, {}).pop(index, None)) is not None:
            memory.close()

    def handles(self, rank: int) -> list[int]:
        """The handles of a rank's buffers, renumbered: the next process counts those that it receives."""
        if rank in self._held:
            self._held[rank] = dict(enumerate(m for _, m in sorted(self._held[rank].items())))
        return [memory.handle for memory in self._held.get(rank, {}).values()]

    @property
    def can_be_saved(self) -> bool:
        """Whether some rank with a snapshot named a function that saves it."""
        return any(self.steps(rank) for rank in self.savers)

    def at(self, rank: int, step: int) -> HeldMemory | None:
        """The memory with the whole snapshot of this step."""
        for memory in self._held.get(rank, {}).values():
            snapshot = memory.snapshot
            if snapshot is not None and (snapshot.rank, snapshot.step) == (rank, step):
                return memory
        return None

    def steps(self, rank: int) -> set[int]:
        """The steps of the whole snapshots of this rank."""
        snapshots = [memory.snapshot for memory in self._held.get(rank, {}).values()]
        return {one.step for one in snapshots if one is not None and one.rank == rank}

    def newest(self, rank: int) -> HeldMemory | None:
        """The memory with the newest whole snapshot of this rank."""
        whole = [
            (snapshot.step, memory)
            for memory in self._held.get(rank, {}).values()
            if (snapshot := memory.snapshot) is not None and snapshot.rank == rank
        ]
        return max(whole, key=lambda one: one[0])[1] if whole else None

    def keep_only(self, step: int | None) -> None:
        """Drop every snapshot but those of this step, from which all ranks resume.

        What is newer belongs to a training that is left: a later restart must not find it. The memory of a
        rank without that snapshot is released.
        """
        for rank, buffers in list(self._held.items()):
            snapshots = {index: memory.snapshot for index, memory in buffers.items()}
            to_keep = [
                index for index, one in snapshots.items() if one is not None and one.step == step
            ]
            for index, memory in buffers.items():
                if index not in to_keep:
                    memory.drop_snapshot()
            if not to_keep:
                self.restoring.discard(rank)
                for memory in self._held.pop(rank).values():
                    memory.close()

    def state(self) -> list[wire.SnapshotSeen]:
        return [
            snapshot_row(snapshot, saves=rank in self.savers)
            for rank, buffers in sorted(self._held.items())
            if rank in self.restoring
            for memory in buffers.values()
            if (snapshot := memory.snapshot) is not None and snapshot.rank == rank
        ]


def snapshot_row(snapshot: SnapshotHeader, *, saves: bool = False) -> wire.SnapshotSeen:
    """The snapshot as the agent reports it, by the clock of agents."""
    return {
        "rank": snapshot.rank,
        "world": snapshot.world,
        "step": snapshot.step,
        "generation": snapshot.generation,
        "at": clock.now() - age_s(snapshot),
        "bytes": snapshot.content_bytes,
        "saves": saves,
    }


def age_s(snapshot: SnapshotHeader) -> float:
    return max(0.0, time.monotonic() - snapshot.at)
