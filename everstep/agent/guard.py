"""The agent's side of its warden: starts it, says what to guard, starts another if it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from everstep.agent import warden
from everstep.agent.agent import Agent

POLLED_S = 0.3
"""A poll is handed on at most so often."""

AGAIN_S = 0.2


class Guard:
    """The warden of one agent."""

    def __init__(self, agent: Agent, pyz: Path) -> None:
        self._agent = agent
        self._pyz = pyz
        self._pid = 0
        self._pipe = -1
        self._writing = threading.Lock()
        self._polled = 0.0
        agent.guards.append(self.tell)
        agent.why_killed = self._why
        self._start()

    def _start(self) -> None:
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        told = [str(os.getpid()), self._agent.uid, str(self._agent.home)]
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(self._pyz), "warden", *told],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, reads, 0)],
            )
        except OSError as error:
            self._agent.note(f"the warden cannot be started: {error}")
            os.close(writes)
            self._agent.loop.later(AGAIN_S, self._start)
            return
        finally:
            os.close(reads)
        self._pipe = writes
        self._agent.population.spared.add(self._pid)
        self._agent.children[self._pid] = self._gone
        self.tell()

    def _gone(self) -> None:
        self._agent.population.spared.discard(self._pid)
        with self._writing:
            os.close(self._pipe)
            self._pipe = -1
        self._agent.loop.later(AGAIN_S, self._start)

    def _why(self) -> str | None:
        run = self._agent.run
        return why(self._agent.home, run.generation) if run is not None else None

    def tell(self) -> None:
        """Say what to guard."""
        run = self._agent.run
        if run is None:
            return
        command = run.command
        folders = (command["model_dir"], command["checkpoints_path"])
        helper = self._agent.helper()
        said = {
            "generation": run.generation,
            "fence_s": command["fence_s"],
            "owner": [self._agent.job, command["cluster"]],
            "folders": [folder for folder in folders if folder],
            "ranks": [rank.pid for rank in run.ranks if rank.pid],
            "helper": helper["pid"] if helper is not None else 0,
        }
        if not self._write(json.dumps(said).encode() + b"\n") and self._pid:
            # It has not listened for long: another one will. This one may be stopped for ever.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def polled(self) -> None:
        """Somebody asked the agent for something. For any thread."""
        now = time.monotonic()
        if now - self._polled > POLLED_S:
            self._polled = now
            self._write(warden.POLLED + b"\n")

    def _write(self, line: bytes) -> bool:
        with self._writing:
            if self._pipe < 0:
                return True  # whoever comes next is told everything
            try:
                return os.write(self._pipe, line) == len(line)
            except OSError:
                return False


def why(home: Path, generation: int) -> str | None:
    """Why the warden ended the ranks of this generation, if it did."""
    try:
        said = json.loads((home / warden.FILE).read_text())
        return str(said["why"]) if said["generation"] == generation else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
