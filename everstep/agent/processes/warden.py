"""The warden: a small process that ends the ranks when their agent cannot.

It outlives an agent that is stopped or killed. It opens and reads the fence every second. It ends the ranks
if the fence has a newer generation, or if for `fence_s` neither the fence could be read nor a worker polled
the agent. The agent writes to the warden's standard input; when that closes, the agent is gone. The warden
writes to its standard output at least once a second; the agent replaces one that is silent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent.processes import proc, rank_ends
from everstep.agent.processes.members import Members
from everstep.agent.storage import files, reading
from everstep.agent.storage.fence_watch import TICK_S, FenceWatch
from everstep.protocol import wire

FAMILY_S = 5.0
"""Time between two updates of the member list: a stopped agent cannot update it itself."""
RECORD_S = 1.0
"""Longest wait for the storage of a record, which must not hold up the end."""
FILE = "warden.json"
POLLED = b"p"
"""The agent's message that a worker has polled it."""
HERE = b"h"
"""The warden's sign of life."""


class Warden:
    """The ranks that the warden guards, and what it last received from the agent."""

    def __init__(
        self, agent_pid: int, uid: str, home: Path, *, pid_in_folder: int | None = None
    ) -> None:
        self.agent_pid = agent_pid
        # The agent's process number in the pid file of its folder: another one in another PID namespace.
        self.pid_in_folder = agent_pid if pid_in_folder is None else pid_in_folder
        self.uid = uid
        self.home = home
        self.generation = 0
        # The identity of the prewarm helper. It writes nothing: it only has to end with its agent.
        self.helper: tuple[int, ...] | None = None
        self._read, self._wake = os.pipe()
        self.watch = FenceWatch(lambda: _write(self._wake))
        self._rank_ends = rank_ends.EndRecord(home)
        self._received = b""
        self._members = Members(home, uid)
        self._root = proc.find(agent_pid)
        self._family = proc.Family(agent_pid)
        self._family_at = 0.0

    def work(self) -> None:
        """Guard until the agent is gone, then end what it had started."""
        while True:
            ready, _, _ = select.select([0, self._read], [], [], TICK_S)
            if 0 in ready and not self._read_messages():
                self.helper = None
                self._rank_ends.poll(ends_all=True)
                self._end("its agent is gone")
                if not self._has_successor():
                    self._members.leave()
                return
            if self._read in ready:
                os.read(self._read, 4096)
            _write(1)
            self._rank_ends.poll()
            self._poll_ranks()
            why = self.watch.why()
            if why is not None:
                self._end(why)

    def _read_messages(self) -> bool:
        """Read what the agent sent; return whether it is still there."""
        try:
            piece = os.read(0, 65536)
        except ConnectionResetError:  # it ended without reading our output
            piece = b""
        if not piece:
            return False
        *lines, self._received = (self._received + piece).split(b"\n")
        for line in lines:
            if line == POLLED:
                self.watch.polled()
            else:
                self._guard(json.loads(line))
        return True

    def _guard(self, order: dict[str, Any]) -> None:
        self.generation = order["generation"]
        self.helper = tuple(order["helper"]) if order["helper"] else None
        self.watch.guard(order)
        self._rank_ends.follow(order)

    def _poll_ranks(self) -> None:
        now = time.monotonic()
        if self.generation and now - self._family_at > FAMILY_S:
            self._family_at = now
            with contextlib.suppress(OSError):
                self._members.note_family(self._family)

    def _end(self, why: str) -> None:
        """Send SIGKILL to everything of the guarded generation, until nothing of it is left."""
        looks = 0
        while (victims := self._victims()) and not self._has_newer_generation():
            looks += 1
            if looks == 1:
                record_end(self.home, self.generation, why)
            _write(1)
            proc.kill(victims)
            time.sleep(proc.pause_s(looks))

    def _has_newer_generation(self) -> bool:
        """Whether the agent has moved to a newer generation, whose processes may be among those found.

        The agent writes the generation to the pipe before it starts it: each process that was found is either
        older, or its generation is in the pipe.
        """
        before = self.generation
        while select.select([0], [], [], 0)[0]:
            if not self._read_messages():
                return False  # the agent is gone
        return self.generation != before

    def _victims(self) -> list[proc.Process]:
        if not self.generation:
            return []
        living = self._living()
        if self._has_successor():  # that agent ends what is left, this process included
            return []
        spared_pids = {os.getpid(), self.agent_pid}
        return [s for s in living if s.pid not in spared_pids and s.identity != self.helper]

    def _living(self) -> list[proc.Process]:
        for looks in itertools.count(1):
            with contextlib.suppress(OSError):
                return self._members.find(root=self._root).living
            time.sleep(proc.pause_s(looks))
        raise AssertionError("there is no last number")

    def _has_successor(self) -> bool:
        """Whether another agent began in this folder: it writes its pid file before anything else."""
        try:
            pid = int(files.read(self.home / wire.PID, wire.SMALL_FILE_MAX).split()[0])
        except (OSError, ValueError, IndexError):
            return False
        return pid != self.pid_in_folder


def record_end(home: Path, generation: int, why: str) -> None:
    """Write down why the ranks of this generation were ended."""
    record = json.dumps({"generation": generation, "why": why, "at": time.time()})
    with contextlib.suppress(OSError):  # it is only for people, and must not hold up the end
        write = partial(files.replace, home / FILE, record, is_synced=True)
        reading.read(str(home), write, within_s=RECORD_S)


def _write(handle: int) -> None:
    """Write one byte as a sign of life. A full pipe holds enough of them."""
    with contextlib.suppress(OSError):
        os.write(handle, HERE)


def main() -> None:
    """`AGENT.pyz warden PID NUMBER UID HOME`, with a socket to the agent as standard input and output.

    PID is the agent as the warden sees it, NUMBER the agent in the pid file of its folder.
    """
    os.setsid()
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.set_blocking(1, False)
    _, _, pid, number, uid, home = sys.argv
    Warden(int(pid), uid, Path(home), pid_in_folder=int(number)).work()
    os._exit(0)
