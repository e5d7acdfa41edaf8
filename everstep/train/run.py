"""The rank that a process is, as its script sees it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everstep.protocol import rank_memory, wire
from everstep.protocol.rank_memory import (
    FORWARD,
    PAGE,
    SAVE,
    SOCKET_FOLDER,
    TOKEN,
    UPDATE,
    Position,
    SnapshotHeader,
)
from everstep.train import saving, states
from everstep.train.buffers import Buffer, Buffers, MemoryFull
from everstep.train.link import Link
from everstep.train.orders import Orders
from everstep.train.pinning import Pinning

REPORTED_S = 0.1
"""Least time between two messages about a step; the position itself is always up to date."""
KEPT_REPORTED_S = 0.02
"""Least time between two messages about a snapshot."""


class SnapshotUnreadable(Exception):
    """The job resumes from a snapshot that this rank cannot read: it must not begin from anything else."""


class Restored(NamedTuple):
    """What a restarted rank goes on with."""

    step: int  # the last completed one
    state: Any


class Run:
    """Reports where this rank is, and keeps its snapshots. Does nothing where there is no agent."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.RLock()
        self._writing = threading.Lock()  # a snapshot
        self._connected: _Connected | None = None
        self._is_looked_for = False  # the agent
        self._is_rank = True
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget the run in a process that a rank forked, such as the worker of a data loader.

        Before the first call this process may be one that is forked to become a rank.
        """
        self._lock, self._writing = threading.RLock(), threading.Lock()
        if self._is_looked_for:
            self._connected, self._is_rank = None, False

    @property
    def is_managed(self) -> bool:
        """Whether there is an agent."""
        return self._rank() is not None

    def step(self, number: int) -> None:
        """Report that this step is completed."""
        if (rank := self._rank()) is not None:
            rank.move(Position(number, number, FORWARD, time.monotonic()))

    def updating(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Report that parameters change: `with run.updating(step): optimizer.step()`."""
        return self._in_phase(UPDATE, number)

    def saving(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Report that a checkpoint is written: `with run.saving(step): torch.save(...)`."""
        return self._in_phase(SAVE, number)

    @contextlib.contextmanager
    def _in_phase(self, phase: str, number: int) -> Iterator[None]:
        rank = self._rank()
        if rank is None:
            yield
            return
        before = rank.position
        rank.move(Position(number, before.completed, phase, time.monotonic()))
        yield
        rank.move(Position(number, before.completed, FORWARD, time.monotonic()))

    def snapshot(self, step: int, state: object) -> bool:
        """Keep the state after this step in memory that outlives the process. Returns whether it is kept.

        Every rank has to do this for the same steps. The state is copied before the call returns. A call
        from a signal handler in the middle of another one keeps nothing: it would write into the same memory.
        """
        rank = self._rank()
        if rank is None or not self._writing.acquire(blocking=False):
            return False
        try:
            return rank.keep(step, state)
        finally:
            self._writing.release()

    def save_with(self, function: Callable[[int, Any], object]) -> None:
        """Have `function(step, state)` save a snapshot where this process cannot do it any more.

        That is before its pod is given up, in a process of its own: for each rank that calls this, and
        without the others. Raises ValueError for a function that another process cannot find.
        """
        how = saving.saver(function)
        if (rank := self._rank()) is not None:
            rank.save_with(how, Path(self._environ[wire.RANK_FOLDER]))

    def restore(self) -> Restored | None:
        """What this rank goes on with; None: begin from the checkpoint, or from the beginning.

        All ranks of a job get the same step, or all get None. Raises SnapshotUnreadable.
        """
        with self._lock:
            rank, step = self._rank(), self._environ.get(rank_memory.SNAPSHOT_STEP)
            if rank is not None:
                rank.declare(rank_memory.RESTORE)
            if step is None or not self._is_rank:
                return None
            if rank is None:
                raise SnapshotUnreadable(f"the agent with the snapshot of step {step} is gone")
            return Restored(int(step), rank.restored(int(step)))

    def orders(self, free: Callable[[], None]) -> Orders | None:
        """The orders of the agent to a rank whose process outlives a fault; None: there is no agent.

        `free` is called by another thread, at each hold: it frees this process from a collective operation.
        """
        rank = self._rank()
        if rank is None:
            return None
        try:
            orders = Orders(self._environ, free)
        except (OSError, KeyError):
            return None
        for capability in rank_memory.OUTLIVES_FAULTS:
            rank.declare(capability)
        return orders

    def rebuilt(self, generation: int) -> None:
        """This process is a rank of a newer generation from now on."""
        if (rank := self._rank()) is not None:
            rank.generation = generation

    def _rank(self) -> _Connected | None:
        if not self._is_looked_for:
            with self._lock:
                if not self._is_looked_for:
                    self._connected = _Connected.of(self._environ)
                    self._is_looked_for = True
        return self._connected


class _Connected:
    """A rank with an agent. A broken connection ends the messages, and nothing else."""

    def __init__(self, link: Link, environ: Mapping[str, str]) -> None:
        self._link = link
        self.generation = int(environ["EVERSTEP_GENERATION"])
        self.number, self._world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        self._ranks_of_pod = int(environ.get("LOCAL_WORLD_SIZE", "1"))
        self._page, held = self._introduced()
        self.position = Position(None, None, FORWARD, time.monotonic())
        self._version = 0
        self._reported_at = self._kept_reported_at = 0.0
        self._declared: list[str] = []
        self._buffers = Buffers(held, link, shares=self._ranks_of_pod, note=self._note)
        self._pinning = Pinning()
        self._has_noted = False

    def _introduced(self) -> tuple[mmap.mmap, list[Buffer]]:
        """The memory of the position, and the buffers of the process before."""
        handle = os.memfd_create("everstep-position")
        try:
            os.ftruncate(handle, PAGE)
            return mmap.mmap(handle, PAGE), [Buffer(held) for held in self._link.hello(handle)]
        finally:
            os.close(handle)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> _Connected | None:
        """The rank that the environment names; None if there is no agent that has it."""
        folder, token = environ.get(SOCKET_FOLDER), environ.get(TOKEN)
        if not folder or not token:
            return None
        try:
            return cls(Link(folder, token, int(environ["RANK"])), environ)
        except (OSError, ValueError, KeyError):
            return None

    def move(self, position: Position) -> None:
        """Write the position; report a new step unless one was just reported."""
        is_new = position.completed != self.position.completed
        self.position = position
        self._version = rank_memory.write_position(self._page, self._version, position)
        if is_new and position.at - self._reported_at >= REPORTED_S:
            self._reported_at = position.at
            with contextlib.suppress(OSError):
                self._link.stepped()

    def declare(self, capability: str) -> None:
        """Declare what this rank can do."""
        if capability not in self._declared:
            self._declared.append(capability)
            with contextlib.suppress(OSError):
                self._link.declare(self._declared)

    def save_with(self, how: dict[str, Any], folder: Path) -> None:
        """Leave it in the rank's folder, as a whole, and have the agent read it."""
        with contextlib.suppress(OSError):
            part = folder / f"{rank_memory.SAVER}.part"
            part.write_text(json.dumps(how))
            part.replace(folder / rank_memory.SAVER)
            self._link.save_with()

    def keep(self, step: int, state: object) -> bool:
        """Write a snapshot over the oldest one not pinned. Without room the rank has none, and goes on."""
        self.declare(rank_memory.SNAPSHOT)
        content = states.flat(state)
        self._read_pins(step)
        try:
            buffer = self._buffers.for_content(content.nbytes, pinned=self._pinning.steps)
        except (MemoryFull, OSError) as error:
            self._note(f"keeps no snapshot in memory: {error}")
            return False
        place = step, self.generation, self.number, self._world
        sizes = len(content.head), content.nbytes
        self._buffers.drop_unless_earlier(step, buffer)
        buffer.write(SnapshotHeader(*place, *sizes, time.monotonic()), content)
        self._report_snapshot()
        return True

    def _read_pins(self, step: int) -> None:
        """Read the pins and write what follows from them, before a buffer is chosen: agents rely on it."""
        self._pinning.take(step, rank_memory.read_pins(self._page))
        if self._pinning.pinned is not None:
            rank_memory.write_pinned(self._page, self._pinning.pinned)

    def _report_snapshot(self) -> None:
        """Have the agent send a copy to its neighbour; one that was just called finds this snapshot too."""
        if (now := time.monotonic()) - self._kept_reported_at > KEPT_REPORTED_S:
            self._kept_reported_at = now
            with contextlib.suppress(OSError):
                self._link.report_snapshot()

    def _note(self, what: str) -> None:
        """Say once what this rank does: in its log, where its users look, and to the agent."""
        if not self._has_noted:
            self._has_noted, text = True, f"rank {self.number} {what}"
            sys.stderr.write(f"everstep: {text}\n")
            sys.stderr.flush()
            with contextlib.suppress(OSError):
                self._link.note(text)

    def restored(self, step: int) -> Any:
        """The state after this step. Raises SnapshotUnreadable."""
        for buffer, snapshot in [(one, one.snapshot) for one in self._buffers.held]:
            if snapshot is not None and (snapshot.step, snapshot.rank) == (step, self.number):
                if not buffer.is_intact(snapshot):
                    buffer.drop()  # the next start does not find it
                    raise SnapshotUnreadable(f"the snapshot of step {step} is damaged")
                return buffer.read(snapshot)
        raise SnapshotUnreadable(f"the agent of rank {self.number} has no snapshot of step {step}")
