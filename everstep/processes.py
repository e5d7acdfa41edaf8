"""Child processes that never outlive this one.

Each has its output in a file, is ended by its own id, and dies with this process even if that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from everstep.agent.storage import permissions, space

# Runs first in the child: has the kernel send SIGKILL when the parent dies, then executes the command. The
# parent may have died before that, so its PID is checked.
_EXECUTE = """
import os, sys
if sys.platform == "linux":
    import _ctypes  # `ctypes` around it takes longer to import than all the rest here
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")
    _ctypes.call_function(prctl, (1, 9))  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")
"""

# Below the ports of outgoing connections: none of these can take the port, and a client that retries to reach
# a killed server on loopback is never connected to itself.
_PORTS = range(20_000, 32_000)
_TAIL_LINES = 15
SPACE_LEAST = 1_000_000
FULL = "less than 1 MB is left in {}"
POLL_S = 0.02
"""Seconds between two looks at a process that starts: each takes processor time from what it waits for."""
_FOREIGN = ("TEMPORAL_", "EVERSTEP_")

_alive: list[Process] = []
_group: ContextVar[list[Process] | None] = ContextVar("_group", default=None)


class ProcessFailed(Exception):
    """A process ended too early or was not ready in time; the message ends with its last lines."""

    def __init__(
        self, message: str, *, name: str = "", code: int | None = None, short: str | None = None
    ) -> None:
        self.name = name
        self.code = code  # its exit code, if it has ended
        self.short = short or message  # with its last line alone
        super().__init__(message)


class Process:
    """One process of ours, running from the moment this object exists."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        keeps_open: Sequence[int] = (),
        umask: int = -1,  # as ours
    ) -> None:
        self.name = name
        self.log = log
        with open(log, "wb", opener=permissions.opener) as out:  # only this takes one
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _EXECUTE, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                pass_fds=keeps_open,
                umask=umask,
                start_new_session=True,  # Ctrl-C is for us: we end the others in order
            )
        _alive.append(self)
        if (group := _group.get()) is not None:
            group.append(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self, *, within_s: float) -> None:
        """Send SIGTERM, and SIGKILL after this time; return once the process is gone. Repeatable."""
        self._process.terminate()
        try:
            self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self in _alive:
            _alive.remove(self)

    async def until(self, claim: Callable[[], Awaitable[bool]], *, within_s: float) -> None:
        """Wait until the claim holds of the living process."""
        deadline = time.monotonic() + within_s
        while not await claim():
            if not self.is_alive:
                raise self.failed(f"ended with {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self.failed(f"not ready within {within_s:g} s")
            await asyncio.sleep(POLL_S)

    async def wait_for_line(self, beginning: str, *, within_s: float) -> str:
        """Wait for an output line with this beginning; return the rest of the line."""

        lines: list[str] = []
        read_bytes = 0

        async def has_line() -> bool:
            nonlocal read_bytes
            size = self.log.stat().st_size
            if size != read_bytes:  # to read a log is more work than to look at its size
                read_bytes = size
                lines[:] = [
                    line for line in self.output().splitlines() if line.startswith(beginning)
                ]
            return bool(lines)

        await self.until(has_line, within_s=within_s)
        return lines[0].removeprefix(beginning).strip()

    async def succeeds(self, *, within_s: float) -> str:
        """Wait for its end; return its output. Raises ProcessFailed if its exit code is not 0."""

        async def has_ended() -> bool:
            return not self.is_alive

        await self.until(has_ended, within_s=within_s)
        _alive.remove(self)
        if self._process.returncode:
            raise self.failed(f"ended with {self._process.returncode}")
        return self.output()

    def failed(self, what: str) -> ProcessFailed:
        lines = [line for line in self.output().splitlines() if line.strip()]
        tail = "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
        short = f"; its last line: {lines[-1].strip()} (all of it: {self.log})" if lines else ""
        if is_full(self.log.parent):
            short += f"; {FULL.format(self.log.parent)}"
        return ProcessFailed(
            f"{self.name}: {what}" + (f"; its output:\n{tail}" if tail else ""),
            name=self.name,
            code=self._process.poll(),
            short=f"{self.name}: {what}{short}",
        )


def is_full(folder: Path) -> bool:
    """Whether the disk of this folder has no space for a database or a log."""
    return space.free_bytes(folder) < SPACE_LEAST


def end_all() -> None:
    """End all processes that are alive, the newest first: it may depend on the others."""
    _end(_alive)


@contextlib.contextmanager
def ended_with_block() -> Iterator[None]:
    """End with the block the processes that were started in it, and no others of this process."""
    group: list[Process] = []
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)
        _end(group)


def _end(group: Iterable[Process]) -> None:
    for process in reversed([*group]):
        process.end(within_s=3.0)


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process, without settings that would lead a child to another server."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**inherited, "PYTHONUNBUFFERED": "1", "TEMPORAL_CONFIG_FILE": os.devnull, **changes}


def free_port() -> int:
    """A loopback port that is free now."""
    while True:
        # Not from `random`, which may have one seed in many processes.
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def end_on(*numbers: signal.Signals) -> list[signal.Signals]:
    """Let these signals end the current task as Ctrl-C does.

    Returns a list that gets each signal received.
    """
    task = asyncio.current_task()
    assert task is not None, "called from a task"
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    return received
