"""The agent's side of its warden: starts it, sends it what to guard, replaces it if it is gone or silent.

While the warden is silent the agent reads the fence itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from everstep.agent.agent import Agent
from everstep.agent.processes import proc, warden
from everstep.agent.storage import files
from everstep.agent.storage.fence_watch import TICK_S, FenceWatch

POLLED_S = 0.3
"""Least time between two polls that are passed on to the warden."""

AGAIN_S = 0.2
"""Pause before a warden is started again."""
ALONE_S = 3.0
"""After this silence the warden may not be working: the agent reads the fence itself."""
MUTE_S, BEGINS_S = 5.0, 60.0
"""Silence after which it is replaced. A new one may have to wait for a processor on a busy machine."""


class WardenLink:
    """The warden of one agent."""

    def __init__(self, agent: Agent, pyz: Path, pid_in_folder: int) -> None:
        self._agent = agent
        # The agent's PID in the pid file of its folder, as workers see it: the agent itself may be in another
        # PID namespace.
        self._pid_in_folder = pid_in_folder
        self._pyz = pyz
        self._pid = 0
        self._link: socket.socket | None = None
        self._writing = threading.Lock()
        self._polled = 0.0  # when a poll was last passed on
        self._polled_at = time.monotonic()
        self._silent_s = 0.0  # how long the warden has been silent
        self._has_begun = False  # the warden has given its first sign of life
        self._watch: FenceWatch | None = None  # the agent's own, while the warden is silent

        self._start()

    def _start(self) -> None:
        try:
            self._spawn()
        except OSError as error:
            self._agent.note(f"the warden cannot be started: {error}")
            self._agent.loop.later(AGAIN_S, self._start)
            return
        self._has_begun = False
        # No stop ends it. Whenever it ends, another one is started.
        self._agent.spare_child(self._pid, self._start_another)
        self.send_orders()

    def _spawn(self) -> None:
        words = [str(os.getpid()), str(self._pid_in_folder), self._agent.uid, str(self._agent.home)]
        agent_end, warden_end = socket.socketpair()
        agent_end.setblocking(False)
        with warden_end:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(self._pyz), "warden", *words],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, warden_end.fileno(), one) for one in (0, 1)],
            )
        self._link = agent_end

    def _replace(self) -> None:
        """Kill the warden, which may be stopped for ever, and start another one.

        Its end is not waited for: storage may hold it, and it ends when that lets it go.
        """
        proc.end_child(self._pid)
        # Its end starts no other one any more: that is done here.
        self._agent.spare_child(self._pid, lambda: None)
        self._start_another()

    def _start_another(self) -> None:
        # The agent reads the fence itself until the next warden gives a sign of life.
        self._pid, self._silent_s = 0, max(self._silent_s, ALONE_S)
        with self._writing:
            if self._link is not None:
                self._link.close()
            self._link = None
        self._agent.loop.later(AGAIN_S, self._start)

    # -- without one ------------------------------------------------------------------------------

    def poll(self) -> None:
        """Replace a warden that is silent for long, and read the fence here while it is silent."""
        now = time.monotonic()
        passed, self._polled_at = now - self._polled_at, now
        if self._has_sign_of_life():
            self._has_begun, self._silent_s = True, 0.0
        else:
            # A stall of the agent must not count as silence of the warden.
            self._silent_s += min(passed, TICK_S)
        if self._pid and self._silent_s > (MUTE_S if self._has_begun else BEGINS_S):
            self._agent.note("the warden did not answer and was replaced")
            self._replace()
            self._agent.publish()
        if self._silent_s < ALONE_S:
            self._watch = None
        elif (message := self._message()) is not None:
            self._watch_alone(message)

    def _has_sign_of_life(self) -> bool:
        try:
            return self._link is not None and bool(self._link.recv(4096))
        except OSError:  # BlockingIOError, as long as it is silent
            return False

    def _watch_alone(self, message: dict[str, Any]) -> None:
        if self._watch is None:
            self._watch = FenceWatch(was_read=lambda: None)  # `look` reads the results at each tick
        self._watch.guard(message)
        if (reason := self._watch.why()) is not None:
            warden.record_end(self._agent.home, message["generation"], reason)
            proc.kill(self._agent.population.now() or ())

    def why_killed(self) -> str | None:
        """Why the warden ended the ranks of this run, if it did."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            report = files.read_json(self._agent.home / warden.FILE)
            if self._agent.run is not None and report["generation"] == self._agent.run.generation:
                return str(report["why"])
        return None

    def send_orders(self) -> None:
        """Send the warden what to guard."""
        message = self._message()
        if (
            message is not None
            and not self._write(json.dumps(message).encode() + b"\n")
            and self._pid
        ):
            self._replace()  # it has not read its input for long

    def _message(self) -> dict[str, Any] | None:
        """What the warden has to guard; None if there is no run."""
        run = self._agent.run
        if run is None:
            return None
        command = run.command
        folders = (command["order"].model_dir, command["order"].checkpoints_path)
        helper = self._agent.parts.prewarm.state()
        return {
            "generation": run.generation,
            "fence_s": command["fence_s"],
            "unpolled_s": time.monotonic() - self._agent.polled,
            "owner": [self._agent.job, command["cluster"]],
            "folders": [folder for folder in folders if folder],
            "helper": _identity(helper["pid"]) if helper is not None else None,
            "ranks": [
                (rank.number, *rank.process.identity)
                for rank in run.ranks
                if rank.is_alive and rank.process is not None
            ],
        }

    def polled(self) -> None:
        """Note that a request has reached the agent. For any thread."""
        now = time.monotonic()
        if now - self._polled > POLLED_S:
            self._polled = now
            self._write(warden.POLLED + b"\n")
            if (alone := self._watch) is not None:
                alone.polled()

    def _write(self, line: bytes) -> bool:
        with self._writing:
            if self._link is None:
                return True  # the next warden gets everything
            try:
                return self._link.send(line) == len(line)
            except OSError:
                return False


def _identity(child: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        process = proc.find(child)
        return process.identity if process is not None else None
    return None
