"""Saves snapshots by the functions of their ranks, each in a process of its own, once the ranks have ended.

These processes are the pod's like ranks: the next stop or start ends them. Each is killed after the time that
the command gives it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from everstep.agent.memory.snapshots import Saver
from everstep.agent.processes import proc, rank_exec
from everstep.agent.processes.members import with_families
from everstep.protocol import bounds, wire

if TYPE_CHECKING:
    from everstep.agent.agent import Agent

WORDS_MOST = 300
LOGS_READ = 4096


class Dumping:
    """The newest command of this kind, and how far it is. In the agent's loop."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._generation = 0
        self._running: dict[int, int] = {}  # process by rank
        self._saved: list[int] = []
        self._failed: list[str] = []
        self._when_done: Callable[[], object] = lambda: None

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def when_done(self, do: Callable[[], object]) -> None:
        """Call this once the newest command is done: the agent waits for that."""
        self._when_done = do
        if self._generation and not self._running:
            do()

    def answer(self, command: wire.DumpCommand) -> wire.DumpAnswer:
        """Begin, unless this generation has begun before; return how far it is."""
        if command["generation"] != self._generation:
            self._begin(command)
        return {
            "done": not self._running,
            "saved": sorted(self._saved),
            "failed": list(self._failed),
        }

    def _begin(self, command: wire.DumpCommand) -> None:
        self._generation, self._saved, self._failed = command["generation"], [], []
        for rank, saver in sorted(self._agent.snapshots.savers.items()):
            memory = self._agent.snapshots.at(rank, command["step"])
            if memory is None:
                self._failed.append(f"rank {rank} has no snapshot of step {command['step']}")
                continue
            try:
                self._spawn(rank, saver, memory.handle, command)
            except OSError as error:
                self._failed.append(f"rank {rank}: {error}")
        self._check()

    def _check(self) -> None:
        if not self._running:
            self._when_done()

    def _spawn(self, rank: int, saver: Saver, handle: int, command: wire.DumpCommand) -> None:
        log = self._agent.home / wire.LOGS / f"save-g{command['generation']}-r{rank}.log"
        opened = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        outputs: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), opened, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        memory = os.dup(handle)
        os.set_inheritable(memory, True)
        try:
            numbers = memory, command["step"], command["within_s"]
            words = [*saver.command, *map(str, numbers)]
            pid, report = rank_exec.spawn(words, saver.env, saver.workdir, outputs)
        finally:
            os.close(memory)
        os.close(report)
        self._running[rank] = pid
        timer = self._agent.loop.later(
            command["within_s"], partial(self._give_up, rank, pid, command["within_s"])
        )
        ended = partial(self._ended, rank, pid, str(log), timer)
        self._agent.children[pid] = ended

    def _give_up(self, rank: int, pid: int, within_s: float) -> None:
        if self._running.get(rank) == pid:
            self._failed.append(f"rank {rank}: it took longer than {within_s:g} s")
            with contextlib.suppress(OSError):
                table = proc.all_processes()
                proc.kill([table[one] for one in with_families({pid}, table) if one in table])

    def _ended(self, rank: int, pid: int, log: str, timer: Any, code: int) -> None:
        self._agent.loop.cancel(timer)
        if self._running.get(rank) != pid:
            return
        del self._running[rank]
        if code == 0:
            self._saved.append(rank)
        elif code > 0:
            self._failed.append(f"rank {rank}: {_last_line(log) or f'exit code {code}'}")
        elif not any(line.startswith(f"rank {rank}:") for line in self._failed):
            self._failed.append(f"rank {rank}: ended by signal {-code}")
        self._agent.publish()
        self._check()


def _last_line(log: str) -> str:
    try:
        with open(log, "rb") as file:  # noqa: PTH123  # a text
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOGS_READ))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return bounds.plain(lines[-1])[:WORDS_MOST] if lines else ""
