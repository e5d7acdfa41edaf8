"""The warden: a small process that ends the ranks when their agent cannot.

It outlives an agent that is stopped or killed. It opens the fence anew every second: a newer generation
there, or neither a reading nor a poll of the agent for `fence_s`, and the ranks are ended. It hears the
agent through its standard input; when that ends, the agent is gone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from everstep.agent import book, fence, proc

TICK_S = 1.0
STALL_S = 2.0
"""A tick that took longer than this was our own stall (or the machine slept): the rest is not counted."""
SNAPSHOT_S = 5.0
AGAIN_S = 0.02
FILE = "warden.json"
POLLED = b"p"


class Readings:
    """The fences, read by a thread: storage that hangs must not hang the warden."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.owner: fence.Owner = ("", "")
        self.newest = 0
        self.good = 0  # how often one could be read
        self._known: set[str] = set()
        self._read, self._wake = os.pipe()
        threading.Thread(target=self._work, daemon=True).start()

    @property
    def handle(self) -> int:
        """Readable once the fences were looked at again."""
        return self._read

    def _work(self) -> None:
        while True:
            before = time.monotonic()
            for folder in self.folders:
                if self._look(folder):
                    self.good += 1
            os.write(self._wake, b"r")
            time.sleep(max(0.0, before + TICK_S - time.monotonic()))

    def _look(self, folder: str) -> bool:
        try:
            own = fence.read(folder).get(self.owner)
        except FileNotFoundError:
            own = None
        except OSError:
            return False
        if (
            own is None
        ):  # before the first fence there is only the folder; one that vanished is not read
            return folder not in self._known and Path(folder).is_dir()
        self.newest = max(self.newest, own.generation)
        self._known.add(folder)
        return True


class Warden:
    """What it guards, and what it knows."""

    def __init__(self, agent: int, uid: str, home: Path) -> None:
        self.agent = agent
        self.uid = uid
        self.home = home
        self.generation = 0
        self.fence_s = 0.0
        self.ranks: set[int] = set()
        self.helper: proc.Seen | None = None  # writes nothing: it only has to end with its agent
        self.readings = Readings()
        self._heard = b""
        self._good_before = 0
        self._dark_s = 0.0
        self._ticked = time.monotonic()
        self._relatives = proc.Family(agent)
        self._family: dict[int, proc.Seen] = {}  # descendants of the agent when it was last seen
        self._family_at = 0.0

    def work(self) -> None:
        """Until the agent is gone, and what it had started with it."""
        while True:
            ready, _, _ = select.select([0, self.readings.handle], [], [], TICK_S)
            if 0 in ready and not self._hear():
                self.helper = None
                self._end("its agent is gone")
                return
            if self.readings.handle in ready:
                os.read(self.readings.handle, 4096)
            self._tick()
            why = self._why()
            if why is not None:
                self._end(why)

    def _hear(self) -> bool:
        """Whether the agent is still there."""
        piece = os.read(0, 65536)
        if not piece:
            return False
        *lines, self._heard = (self._heard + piece).split(b"\n")
        for line in lines:
            if line == POLLED:
                self._dark_s = 0.0
            else:
                self._guard(json.loads(line))
        return True

    def _guard(self, told: dict[str, Any]) -> None:
        if told["generation"] != self.generation:
            self._dark_s = 0.0
        self.generation = told["generation"]
        self.fence_s = told["fence_s"]
        self.ranks = set(told["ranks"])
        self.helper = proc.look(told["helper"]) if told["helper"] else None
        job, cluster = told["owner"]
        self.readings.owner = (job, cluster)
        self.readings.folders = told["folders"]

    def _tick(self) -> None:
        now = time.monotonic()
        passed, self._ticked = now - self._ticked, now
        self._dark_s += min(passed, STALL_S)
        good = self.readings.good
        if good != self._good_before or not self.readings.folders:
            self._dark_s = 0.0
        self._good_before = good
        if self.generation and now - self._family_at > SNAPSHOT_S:
            self._family = self._relatives.now()
            self._family_at = now

    def _why(self) -> str | None:
        if not self.generation:
            return None
        if self.readings.newest > self.generation:
            return f"generation {self.readings.newest} is in the fence"
        if self._dark_s > self.fence_s:
            return f"no poll and no fence for {self.fence_s:g} s"
        return None

    def _end(self, why: str) -> None:
        """SIGKILL to everything of the guarded generation, until nothing of it is left."""
        told = False
        while (victims := self._victims()) and not self._is_told_otherwise():
            if not told:
                self._say(why)
                told = True
            proc.kill(victims, spared=[self.helper.pid] if self.helper is not None else [])
            time.sleep(AGAIN_S)

    def _is_told_otherwise(self) -> bool:
        """Whether the agent runs something newer by now, which may be among those just found.

        It says so before it starts it: whoever was found is either older, or spoken of in the pipe.
        """
        before = self.generation
        while select.select([0], [], [], 0)[0]:
            if not self._hear():
                return False  # nobody speaks any more
        return self.generation != before

    def _say(self, why: str) -> None:
        said = {"generation": self.generation, "why": why, "at": time.time()}
        try:
            book.write(self.home / FILE, json.dumps(said))
        except OSError:
            return  # it is only for people

    def _victims(self) -> list[proc.Seen]:
        if not self.generation:
            return []
        table = proc.everybody()
        found = proc.below(self.agent, table)
        # An agent started in its place may be at work already: its processes are of a newer generation.
        found |= proc.marked(self.uid, table, newest=self.generation)
        found |= {pid for pid, seen in table.items() if seen.session in self.ranks}
        found |= {pid for pid, seen in self._family.items() if self._is_same(seen, table.get(pid))}
        found -= {os.getpid(), self.agent}
        if self.helper is not None and self._is_same(self.helper, table.get(self.helper.pid)):
            found.discard(self.helper.pid)
        return [table[pid] for pid in found if table[pid].state not in (proc.ZOMBIE, "X")]

    @staticmethod
    def _is_same(then: proc.Seen, now: proc.Seen | None) -> bool:
        return now is not None and now.started == then.started


def main(told: list[str]) -> None:
    """`warden AGENT UID HOME`, with the pipe from the agent as standard input."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Warden(int(told[0]), told[1], Path(told[2])).work()
    sys.stdout.flush()
    os._exit(0)
