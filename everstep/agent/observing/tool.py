"""Asks a maker's tool what its devices do, now and then, and never waits for it.

One process at a time, started and read by the loop. What takes too long is killed; one that cannot be
killed (its driver may be stuck) is not started a second time, and nothing is known meanwhile.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from everstep.agent.agent import Agent
from everstep.agent.loop import Timer
from everstep.agent.observing import printed
from everstep.agent.observing.hardware import KINDS, find
from everstep.agent.processes import proc

ANSWER_S = 5.0
ANSWER_BYTES = 1024 * 1024
READ = 64 * 1024

Ask = tuple[tuple[str, ...], Callable[[str], "dict[int, float]"]]

NVIDIA = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits")


def of(agent: Agent, accelerator: str) -> Tool | None:
    """The tool for these devices; None for those that have none."""
    return Tool(agent, accelerator) if accelerator in KINDS else None


class Tool:
    """The tool of one kind of devices."""

    def __init__(self, agent: Agent, accelerator: str) -> None:
        self._agent = agent
        self._accelerator = accelerator
        self.shows: Mapping[int, float] = {}
        self.readings = 0  # so often it was asked, whatever came of it
        self._asked = self._began = self._told = -math.inf
        self._found: dict[int, float] = {}
        self._wanted: frozenset[int] = frozenset()
        self._asks: list[Ask] = []
        self._reads: Callable[[str], dict[int, float]] | None = None
        self._pid = 0
        self._process: proc.Seen | None = None
        self._output = -1
        self._text = b""
        self._deadline: Timer | None = None

    def look(self, indices: Iterable[int], *, every_s: float) -> None:
        """Ask again if it is time to."""
        now = time.monotonic()
        if self._pid:
            if now - self._began > ANSWER_S and now - self._told >= every_s:
                self._tell({})  # it does not even end when it is killed
            return
        if now - self._asked < every_s:
            return
        self._asked = now
        self._found, self._wanted = {}, frozenset(indices)
        self._asks = self._first_asks()
        self._ask_next()

    def _first_asks(self) -> list[Ask]:
        if self._accelerator == "nvidia":
            return [(NVIDIA, printed.nvidia)]
        return [(("info",), printed.npu_table)]

    def _ask_next(self) -> None:
        """What the first answer does not say is asked for one by one."""
        if not self._asks:
            self._tell(self._found)
            return
        words, self._reads = self._asks.pop(0)
        program = find(KINDS[self._accelerator].tool)
        if program is None or not self._start(program, words):
            self._asks = []
            self._tell(self._found)

    def _tell(self, shows: Mapping[int, float]) -> None:
        self.shows = shows
        self.readings += 1
        self._told = time.monotonic()

    def _start(self, program: str, words: tuple[str, ...]) -> bool:
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        try:
            self._pid = os.posix_spawn(
                program,
                [program, *words],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writes, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,
            )
        except OSError:
            os.close(reads)
            return False
        finally:
            os.close(writes)
        self._process = proc.look(self._pid)
        self._output, self._text, self._began = reads, b"", time.monotonic()
        # No process of the run: its I/O is no sign of life, and a stop does not wait for its end.
        self._agent.population.spared.add(self._pid)
        self._agent.children[self._pid] = partial(self._ended, self._pid)
        self._agent.loop.watch(reads, self._read)
        self._deadline = self._agent.loop.later(ANSWER_S, self._give_up)
        return True

    def _read(self) -> None:
        try:
            piece = os.read(self._output, READ)
        except BlockingIOError:
            return
        self._text += piece
        if not piece or len(self._text) > ANSWER_BYTES:
            self._close()
        if len(self._text) > ANSWER_BYTES:
            self._give_up()

    def _close(self) -> None:
        if self._output >= 0:
            self._agent.loop.unwatch(self._output)
            os.close(self._output)
            self._output = -1

    def _give_up(self) -> None:
        """What it says from now on does not count."""
        self._reads, self._asks = None, []
        self._close()
        if self._process is not None:
            proc.send(self._process, signal.SIGKILL, to_group=True)

    def _ended(self, pid: int) -> None:
        self._agent.population.spared.discard(pid)
        self._pid = 0
        if self._deadline is not None:
            self._deadline.cancel()
        if self._output >= 0:
            self._read()  # the last of it; what a child of it may still write is nobody's
        self._close()
        if self._reads is not None:
            self._found.update(self._reads(self._text.decode(errors="replace")))
        if self._reads is printed.npu_table:
            missing = sorted(self._wanted - self._found.keys())
            self._asks = [_usages(index) for index in missing]
        self._ask_next()


def _usages(index: int) -> Ask:
    words = ("info", "-t", "usages", "-i", str(index))
    return words, partial(printed.npu_usages, index=index)
