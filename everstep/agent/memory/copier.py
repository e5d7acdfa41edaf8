"""Sends each new snapshot of the pod's ranks to the agent of a neighbour on another node.

In a thread of low priority, one snapshot after the other, at a bounded speed: the training never waits for
it. First the one that the rank has pinned, which stays until it is sent, then the newest. A snapshot that its
rank overwrites meanwhile is left, and the newer one sent. The last part says that the copy is whole, and is
sent only if the snapshot is still the one that was begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from everstep.agent import commands
from everstep.agent.future import Future, in_thread
from everstep.agent.memory.held_memory import HeldMemory
from everstep.agent.memory.neighbour_link import Credentials, NeighbourLink, Refused
from everstep.agent.memory.pins import PinKeeper
from everstep.agent.memory.snapshots import age_s
from everstep.protocol import wire
from everstep.protocol.rank_memory import PAGE, SnapshotHeader

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from everstep.agent.agent import Agent
    from everstep.agent.processes.rank import Rank
    from everstep.agent.processes.run import Run

BYTES_PER_S = 1e9
"""Highest speed of sending: what is left of a network of 25 Gbit/s belongs to the training."""
AGAIN_S = 5.0
"""Pause after a neighbour that did not answer or refused."""
PATIENT = 5
"""The niceness of the thread. The agent's loop needs what it holds, so that it must not starve."""
OVERTAKEN_MOST = 3
"""Snapshots in a row that are overwritten before they were sent, after which there is a note."""


SENT_REMEMBERED = 4
Identity = tuple[int, int, float]
"""Of a snapshot that was sent: the run, the step, and when it was written."""


class Overwritten(Exception):
    """The rank writes a newer snapshot into this memory."""


class Sending(NamedTuple):
    """A snapshot that is being sent."""

    memory: HeldMemory  # a handle of its own
    snapshot: SnapshotHeader
    run: int  # generation
    to: wire.Neighbour
    newest: int  # step of its rank
    pinned: list[int]  # steps whose copies stay

    @property
    def identity(self) -> Identity:
        return self.run, self.snapshot.step, self.snapshot.at


class Copier:
    """Follows the newest run: its neighbour, and what of each rank that has whole."""

    def __init__(self, agent: Agent, credentials: Credentials) -> None:
        self._agent = agent
        self._credentials = credentials
        self._link: tuple[str, NeighbourLink] | None = None
        self._pins = PinKeeper(agent)
        self._sent: dict[int, list[Identity]] = {}  # by rank: the last that were whole there
        self._is_sending = False
        # The run and the address for which sending failed, and until when it is not tried again.
        self._paused: tuple[tuple[int, str], float] | None = None
        self._overtaken = 0  # in a row
        self._noted_run: int | None = None

    def poll(self) -> None:
        """Begin to send what is new, unless something is being sent. In the agent's loop."""
        run = self._agent.run
        if run is None:
            return
        self._pins.look(run)
        if self._is_sending:
            return
        neighbour = run.command["neighbour"]
        if neighbour is None or self._is_paused(run.generation, neighbour):
            return
        if (report := self._pins.message(neighbour)) is not None:
            self._do(partial(self._report, neighbour, report), partial(self._reported, report))
        elif (sending := self._next(run)) is not None:
            self._do(partial(self._send, sending), partial(self._finish, sending))

    def take_report(self, report: wire.PinReport) -> wire.PinsSeen:
        """Take the report of another agent on what is pinned; return the newest pins. In the agent's loop."""
        pins = self._pins.take_report(report)
        self.poll()
        return pins

    def _do(self, work: Callable[[], Any], finish: Callable[[Future[Any] | None], None]) -> None:
        """Do this work in a thread, then finish it in the loop; without a thread at once."""
        self._is_sending = True
        try:
            done = in_thread(work)
        except RuntimeError:  # the machine gives us no thread
            finish(None)
            return
        done.add_done_callback(lambda one: self._agent.loop.hand_over(partial(finish, one)))

    def _next(self, run: Run) -> Sending | None:
        """A snapshot of the rank whose newest copy is the oldest: its pinned one, else its newest."""
        neighbour = run.command["neighbour"]
        if neighbour is None or self._is_paused(run.generation, neighbour):
            return None
        ranks = {rank.number: rank for rank in run.ranks}
        restoring = self._agent.snapshots.restoring
        for number in sorted(restoring, key=lambda one: max(self._sent.get(one, ()), default=())):
            rank = ranks.get(number)
            sending = self._of_rank(number, rank, run.generation, neighbour)
            if sending is not None:
                return sending
        return None

    def _of_rank(
        self, number: int, rank: Rank | None, run: int, neighbour: wire.Neighbour
    ) -> Sending | None:
        """What of this rank the neighbour lacks."""
        snapshots = self._agent.snapshots
        next_step = None if rank is None else self._pins.next_step(rank)
        newest = snapshots.newest(number)
        newest_snapshot = None if newest is None else newest.snapshot
        if newest is None or newest_snapshot is None:
            return None
        pinned = None if next_step is None else snapshots.at(number, next_step)
        for memory in (pinned, newest):
            snapshot = None if memory is None else memory.snapshot
            if memory is None or snapshot is None:
                continue
            sending = Sending(
                HeldMemory(os.dup(memory.handle)),
                snapshot,
                run,
                neighbour,
                newest_snapshot.step,
                [] if rank is None else self._pins.steps(rank),
            )
            if sending.identity not in self._sent.get(number, ()):
                return sending
            sending.memory.close()
        return None

    def _reported(self, report: wire.PinReport, done: Future[Any] | None) -> None:
        """Take the answer; a report that failed is repeated by and by."""
        self._is_sending = False
        if done is not None and done.exception(0) is None:
            self._pins.adopt(report["run"], done.result(0))
        self.poll()

    def _is_paused(self, run: int, neighbour: wire.Neighbour) -> bool:
        """Whether this neighbour has failed in this run just now.

        Another one is tried at once, and so is this one in a new run: it refused what came late from the
        run before, and a pod that is lost right after a restart must not find the next one without copies.
        """
        if self._paused is None or self._paused[0] != (run, neighbour["address"]):
            return False
        return time.monotonic() < self._paused[1]

    def _finish(self, sending: Sending, sent: Future[None] | None) -> None:
        """Remember what the neighbour has, note why it has not, and look for the next one."""
        sending.memory.close()
        self._is_sending = False
        error = OSError("there is no thread") if sent is None else sent.exception(0)
        if error is None:
            sent_before = self._sent.get(sending.snapshot.rank, [])
            self._sent[sending.snapshot.rank] = [*sent_before, sending.identity][-SENT_REMEMBERED:]
            self._pins.copied(sending.snapshot)
            self._overtaken = 0
        elif isinstance(error, Overwritten):
            self._note_overtaken(sending)
        else:
            failed = sending.run, sending.to["address"]
            self._paused = failed, time.monotonic() + AGAIN_S
            is_late = isinstance(error, Refused) and error.status == wire.STALE
            if not is_late:
                why = f"slot {sending.to['slot']} holds no copy of the snapshots: {error}"
                self._note(sending, why)
        self.poll()

    def _note_overtaken(self, sending: Sending) -> None:
        self._overtaken += 1
        if self._overtaken == OVERTAKEN_MOST:
            size = sending.snapshot.content_bytes / 1e6
            self._note(
                sending,
                f"snapshots of {size:.0f} MB come faster than they can be sent to slot"
                f" {sending.to['slot']}, which has no copy of the newest: take them less often",
            )

    def _note(self, sending: Sending, text: str) -> None:
        """Say it once in a run: in the log of the rank, where its users look, and in the agent's state."""
        run = self._agent.run
        if run is None or self._noted_run == sending.run:
            return
        self._noted_run = sending.run
        for rank in run.ranks:
            if rank.number == sending.snapshot.rank and rank.is_alive:
                rank.log.write(f"everstep: {text}\n".encode())
        self._agent.note(text)
        self._agent.publish()

    # -- In a thread --------------------------------------------------------------------------------

    def _send(self, sending: Sending) -> None:
        """Send all parts. Raises Overwritten, OSError or Refused."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PATIENT)
        link, size = self._link_to(sending.to), sending.snapshot.content_bytes
        buffer = bytearray(min(wire.COPY_PART_MOST, size))
        offset, checksum, began = 0, 0, time.monotonic()
        while True:
            with memoryview(buffer)[: size - offset] as part:
                read = os.preadv(sending.memory.handle, [part], PAGE + offset) if part else 0
            content = memoryview(buffer)[:read]
            checksum = zlib.crc32(content, checksum)
            is_last = offset + read >= size
            if not (read or is_last):
                raise OSError(f"the memory of rank {sending.snapshot.rank} is cut off")
            _check(sending, checksum if is_last else None)
            about = _part(sending, offset=offset, checksum=checksum if is_last else None)
            link.post(wire.COPY, about, content)
            offset += read
            if is_last:
                return
            time.sleep(max(0.0, began + offset / BYTES_PER_S - time.monotonic()))

    def _report(self, neighbour: wire.Neighbour, report: wire.PinReport) -> wire.PinsSeen:
        """Send the report. Raises OSError, Refused, or ValueError for no answer of this kind."""
        answer = json.loads(self._link_to(neighbour).post(wire.COPY_PINS, report, memoryview(b"")))
        return commands.read(answer, wire.PinsSeen)  # type: ignore[no-any-return]  # as its shape says

    def _link_to(self, neighbour: wire.Neighbour) -> NeighbourLink:
        """The connection to it, which stays for the next snapshot."""
        address = neighbour["address"]
        if self._link is None or self._link[0] != address:
            if self._link is not None:
                self._link[1].close()
            self._link = address, NeighbourLink(address, self._credentials)
        return self._link[1]


def _check(sending: Sending, checksum: int | None) -> None:
    """Raise Overwritten unless the memory still has the snapshot that was begun: what was read is of it.

    `checksum`: of all that was read. Raises OSError if the rank, which may have had no time to compute it,
    has another one.
    """
    now = sending.memory.snapshot
    if now is None or now._replace(checksum=None) != sending.snapshot._replace(checksum=None):
        raise Overwritten
    if checksum is not None and now.checksum not in (None, checksum):
        raise OSError(f"the snapshot of step {now.step} is damaged in memory")


def _part(sending: Sending, *, offset: int, checksum: int | None) -> wire.CopyPart:
    snapshot = sending.snapshot
    return {
        "to": sending.to["uid"],
        "run": sending.run,
        "rank": snapshot.rank,
        "world": snapshot.world,
        "step": snapshot.step,
        "generation": snapshot.generation,
        "index_bytes": snapshot.index_bytes,
        "content_bytes": snapshot.content_bytes,
        "age_s": age_s(snapshot),
        "offset": offset,
        "checksum": checksum,
        "newest": sending.newest,
        "pinned": sending.pinned,
    }
