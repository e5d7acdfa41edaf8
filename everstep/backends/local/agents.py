"""Agents as a worker sees them: how they are started, asked, watched, and known to be gone.

An agent lives in a folder of its own and outlives every worker. Whether it is gone, and what it started,
is told by `liveness`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.agent import build, files, private, proc, wire
from everstep.agent.members import remove_cgroups
from everstep.backends.local import agent_time, liveness
from everstep.backends.local.liveness import Life
from everstep.backends.local.logs import label

ASK_S = 1.0
"""So long an agent may take for a command; it answers in milliseconds unless it is stopped."""

HEAD_MOST = 64 * 1024
ANSWER_MOST = 16 * 1024 * 1024
"""In bytes. What an agent tells of its ranks is bounded by `logs.TOLD`, whatever they printed."""

UNREADABLE = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)

POLL_S = 10.0
QUIET_S, QUIET_S_MAX = 0.5, 2.0
ANSWERS_PER_S = 100
RETRY_S = 0.05


class NoAnswer(Exception):
    """The agent did not answer: it is not there yet, not there any more, or stopped."""


class Refused(Exception):
    """The agent answered that it will not, or cannot do that: `why`."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{status}: {why}")
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where one agent lives."""

    path: Path

    def life(self) -> Life:
        """Of its agent."""
        return liveness.of_agent(self.path)

    async def ask(
        self, method: str, path: str, body: Any = None, *, within_s: float = ASK_S
    ) -> dict[str, Any]:
        """One request over the agent's socket."""
        try:
            async with asyncio.timeout(within_s):
                return await self._ask(method, path, body)
        except UNREADABLE as error:
            raise NoAnswer(f"{self.path.name}: {error!r}") from None

    async def _ask(self, method: str, path: str, body: Any) -> dict[str, Any]:
        token = (self.path / wire.TOKEN).read_text().strip()
        payload = b"" if body is None else json.dumps(body).encode()
        # The folder's own path may be too long for a socket's address.
        handle = os.open(self.path, os.O_PATH | os.O_DIRECTORY)
        try:
            address = f"/proc/self/fd/{handle}/{wire.SOCKET}"
            reader, writer = await asyncio.open_unix_connection(address, limit=HEAD_MOST)
        finally:
            os.close(handle)
        try:
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
                "Connection: close\r\n\r\n"
            )
            writer.write(head.encode() + payload)
            return await _answer(reader)
        finally:
            writer.close()


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split()[1])
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    length = headers.get("content-length")
    if length is None or int(length) > ANSWER_MOST:
        raise NoAnswer(f"an answer has its length, and at most {ANSWER_MOST} bytes; not {length}")
    raw = await reader.readexactly(int(length))
    try:
        said = json.loads(raw) if raw else {}
    except RecursionError:
        said = None
    if not isinstance(said, dict):
        raise NoAnswer("an answer is no JSON object")
    if status >= 400:
        raise Refused(status, str(said.get("error", said)))
    return said


# -- Starting and ending ------------------------------------------------------------------------


def spawn(
    folder: Folder,
    agent: Path,
    *,
    job: str,
    slot: int,
    node: str,
    uid: str,
    orphan_s: float,
    environ: Mapping[str, str],
) -> None:
    """Start an agent that outlives us. If there is one already, the new one sees it and leaves."""
    folder.path.mkdir(exist_ok=True, mode=0o700)  # never the state directory: that may be away
    label(folder.path, job=job, slot=slot)
    token = folder.path / wire.TOKEN
    if not token.exists():
        fresh = token.with_suffix(f".{os.getpid()}")
        files.replace(fresh, secrets.token_hex(16))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, token)  # whoever comes first gives the token
        fresh.unlink()
    told = ["--home", str(folder.path), "--job", job, "--slot", str(slot), "--node", node]
    told += ["--uid", uid, "--orphan-s", f"{orphan_s:g}"]
    with open(folder.path / "agent.log", "ab", opener=private.opener) as log:
        child = subprocess.Popen(
            [sys.executable, "-I", str(build.ensure(agent)), *told],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=environ,
        )
    _children.append(child)
    _children[:] = [one for one in _children if one.poll() is None]


_children: list[subprocess.Popen[bytes]] = []
"""Agents this worker has started; looked at now and then, so that no dead one stays a zombie."""


def kill_agent(folder: Folder) -> None:
    """SIGKILL, if it lives."""
    if seen := liveness.agent_of(folder.path):
        proc.send(seen, signal.SIGKILL)


def tidy(folder: Folder) -> None:
    """Remove what only a living agent needs. One that was killed could not; its logs stay."""
    for path in (folder.path / wire.SOCKET, *folder.path.rglob("*.tmp")):
        path.unlink(missing_ok=True)
    remove_cgroups(folder.path)


# -- Watching -----------------------------------------------------------------------------------


def _gist(state: wire.State | None) -> object:
    """What of a state is news. That steps and checkpoints follow each other is none: that is how it goes."""
    if state is None:
        return None
    run = state["run"]
    about_run = None
    if run is not None:
        exits = tuple((rank["rank"], rank["exited_at"]) for rank in run["ranks"])
        marks = (run["started_at"], run["failed"], run["stopped"], run["first_step_at"])
        about_run = (run["generation"], exits, marks)
    facts = state["facts"][-1]["n"] if state["facts"] else 0
    return state["boot"], state["stopped_below"], state["evidence"], facts, about_run


@dataclass(slots=True, kw_only=True)
class Watched:
    """One agent, and what it said last."""

    folder: Folder
    state: wire.State | None = None
    heard_at: float | None = None  # our clock
    silent_since: float | None = None
    has_answered: bool = False  # to anybody, ever
    is_gone: bool = False
    boot: str | None = None
    ahead_s: float | None = None  # its clock, of ours
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, kw_only=True)
class Agents:
    """All agents that this worker cares for, each behind one long poll."""

    folder: Callable[[str], Folder]
    clock: Callable[[], float]
    changed: Callable[[str], None]  # something about the pod of this uid is new
    is_cut_off: Callable[[str], bool]
    known: dict[str, Watched] = field(default_factory=dict)

    def watch(self, uid: str, *, has_answered: bool = False) -> Watched:
        """`has_answered`: another worker heard it, so that its absence is its end and no late start."""
        mine = self.known.get(uid)
        if mine is None:
            mine = self.known[uid] = Watched(folder=self.folder(uid))
        mine.has_answered = mine.has_answered or has_answered
        if mine.task is None or mine.task.done():
            mine.task = asyncio.create_task(self._follow(uid, mine), name=f"agent {uid}")
        return mine

    def forget(self, uid: str) -> None:
        mine = self.known.pop(uid, None)
        if mine is not None and mine.task is not None:
            mine.task.cancel()

    async def _follow(self, uid: str, mine: Watched) -> None:
        """As long as it lives. One that ends without being forgotten is gone."""
        while True:
            if self.is_cut_off(uid):
                await asyncio.sleep(RETRY_S)
                continue
            since = mine.state["version"] if mine.state is not None else -1
            asked_at = self.clock()
            try:
                path = f"{wire.STATE}?since={since}&wait_s={POLL_S:g}&quiet_s={self._quiet_s():g}"
                self.hear(uid, await mine.folder.ask("GET", path, within_s=POLL_S + 2 * ASK_S))
            except (NoAnswer, Refused):
                if mine.has_answered and mine.folder.life() is Life.GONE:
                    mine.is_gone = True
                    self.changed(uid)
                    return
                self.not_heard(uid, mine, asked_at=asked_at)
                await asyncio.sleep(RETRY_S)

    def _quiet_s(self) -> float:
        """The more agents, the later each tells that all goes on: so many answers come per second."""
        return min(QUIET_S_MAX, max(QUIET_S, len(self.known) / ANSWERS_PER_S))

    def hear(self, uid: str, said: Mapping[str, Any]) -> wire.State | None:
        """A state, wherever it comes from: the newest counts."""
        mine = self.known.get(uid)
        state: wire.State = said  # type: ignore[assignment]  # what an agent says is this
        if mine is None or self.is_cut_off(uid):
            return state
        mine.has_answered = True
        state = self._in_our_time(mine, state)
        was_silent, mine.silent_since, mine.heard_at = mine.silent_since, None, self.clock()
        old = mine.state
        if old is None or old["boot"] != state["boot"] or old["version"] < state["version"]:
            mine.state = state
        if was_silent is not None or _gist(old) != _gist(mine.state):
            self.changed(uid)
        return mine.state

    def _in_our_time(self, mine: Watched, state: wire.State) -> wire.State:
        if mine.boot != state["boot"]:
            mine.boot, mine.ahead_s = state["boot"], None
        mine.ahead_s = agent_time.ahead_s(state, now=self.clock(), known_s=mine.ahead_s)
        return agent_time.in_ours(state, mine.ahead_s)

    def not_heard(self, uid: str, mine: Watched, *, asked_at: float) -> None:
        """It left a question unanswered, and has said nothing else since that was put.

        Silence begins with the question: while nobody asked (we had no processor, say), it owed no answer.
        """
        if mine.silent_since is not None or mine.heard_at is None or mine.heard_at > asked_at:
            return
        mine.silent_since = asked_at
        self.changed(uid)

    async def ask(
        self, uid: str, method: str, path: str, body: Any = None, *, within_s: float = ASK_S
    ) -> dict[str, Any]:
        """A command to the agent; `NoAnswer` if it cannot be reached or must not be."""
        if self.is_cut_off(uid):
            raise NoAnswer(f"{uid} is cut off")
        return await self.folder(uid).ask(method, path, body, within_s=within_s)

    async def close(self) -> None:
        tasks = [mine.task for mine in self.known.values() if mine.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
