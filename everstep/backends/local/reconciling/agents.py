"""The agents of this machine: where each lives, how it is started and ended.

An agent lives in a folder of its own and outlives every worker. `liveness` shows whether it is gone, and what
it started.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.agent import build
from everstep.agent.processes import proc
from everstep.agent.processes.members import remove_cgroups
from everstep.agent.storage import files, permissions
from everstep.backends.agents.client.link import REQUEST_S, Link, request_once, unix_link
from everstep.backends.local.logs import label
from everstep.backends.local.reconciling import liveness
from everstep.backends.local.reconciling.liveness import Life
from everstep.protocol import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFolder:
    """The folder of one agent."""

    path: Path

    def life(self) -> Life:
        """Whether the agent of the folder lives."""
        return liveness.of_agent(self.path)

    def link(self) -> Link:
        """A link to the agent, which a caller with more than one request keeps open."""
        return unix_link(self.path)

    async def request(
        self, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        """Send one request over a connection of its own."""
        return await request_once(self.link(), method, path, body, within_s=within_s)


# -- Starting and ending ------------------------------------------------------------------------


def spawn(
    folder: AgentFolder,
    agent: Path,
    *,
    job: str,
    slot: int,
    node: str,
    uid: str,
    orphan_s: float,
    log_mb: float = wire.LOG_MB,
    environ: Mapping[str, str],
    has_namespace: bool = True,
) -> None:
    """Start an agent that outlives this process. If the folder has one already, the new one quits.

    `agent`: the path of the agent's program, built if it is missing.
    """
    folder.path.mkdir(
        exist_ok=True, mode=0o700
    )  # without its parents: the state directory may be away
    label(folder.path, job=job, slot=slot)
    token = folder.path / wire.TOKEN
    if not token.exists():
        fresh = token.with_suffix(f".{os.getpid()}")
        files.replace(fresh, secrets.token_hex(16))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, token)  # the first worker sets the token
        fresh.unlink()
    words = ["--home", str(folder.path), "--job", job, "--slot", str(slot), "--node", node]
    words += ["--uid", uid, "--orphan-s", f"{orphan_s:g}", "--log-mb", f"{log_mb:g}"]
    words += ["--namespace"] * has_namespace
    with open(folder.path / "agent.log", "ab", opener=permissions.opener) as log:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(build.ensure(agent)), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=environ,
        )
    _children.append(child)


_children: list[subprocess.Popen[bytes]] = []
"""Agents that this process started and has not waited for yet."""


def reap_agents() -> None:
    """Wait for agents that this process started and that have ended, so that none stays a zombie."""
    _children[:] = [child for child in _children if child.poll() is None]


def kill_agent(folder: AgentFolder) -> None:
    """SIGKILL, if it lives."""
    if process := liveness.agent_of(folder.path):
        proc.send(process, signal.SIGKILL)


def clean_up(folder: AgentFolder) -> None:
    """Remove what only a living agent needs, and a killed one left behind. Its logs stay."""
    for path in (folder.path / wire.SOCKET, *folder.path.rglob("*.tmp")):
        path.unlink(missing_ok=True)
    remove_cgroups(folder.path)
