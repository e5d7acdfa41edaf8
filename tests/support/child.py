"""Processes that tests start and that never outlive them, however the test run ends.

What belongs here: starting, killing and reading the log of a child. What the child is for belongs to
its user: `devserver.py`, `workerproc.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

# Runs first in the child: asks the kernel for a SIGKILL when our thread dies, then becomes the
# command. The parent may have died in between, hence the second look at who it is.
_BECOME = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the test run is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""
_PR_SET_PDEATHSIG = 1  # from the kernel's prctl.h

_alive: set[Child] = set()


class Process(Protocol):
    """What is called of a `Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def send_signal(self, number: signal.Signals, /) -> None: ...


class ChildFailed(AssertionError):
    """A child ended, or was not ready in time; the message closes with its last log lines."""


class Child:
    """One process with its log in a file. Dies with the test run, also when that is killed."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        begin: Callable[[], Process] | None = None,  # otherwise than by a command
    ) -> None:
        self.name = name
        self.log = log
        log.touch()
        self._log_from = log.stat().st_size
        self._process = begin() if begin is not None else self._begun(command, env, cwd)
        _alive.add(self)

    def _begun(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None
    ) -> Process:
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops us in order
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal's number if one ended it."""
        return self._process.poll()

    def output(self) -> str:
        """What this process has printed; of an earlier one with the same log nothing."""
        with self.log.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Signal this process, and no other. Nothing happens if it has ended."""
        self._process.send_signal(number)

    def kill(self) -> int:
        """SIGKILL; it is gone when this returns. Safe to repeat."""
        self.send(signal.SIGKILL)
        _alive.discard(self)
        return self._process.wait()

    async def until(self, claim: Callable[[], Awaitable[bool]], *, within_s: float) -> None:
        """Wait until the claim holds, else fail with the last words of the process."""
        deadline = time.monotonic() + within_s
        while True:
            returncode = (
                self.returncode
            )  # looked at first: it may end just after it made the claim true
            if await claim():
                return
            if returncode is not None:
                raise self._failed(f"ended with {returncode}")
            if time.monotonic() > deadline:
                raise self._failed(f"not ready within {within_s:g} s")
            await asyncio.sleep(0.01)

    async def ended(self, *, within_s: float) -> int:
        """Its exit code, once it has ended by itself."""
        deadline = time.monotonic() + within_s
        while self.returncode is None:
            if time.monotonic() > deadline:
                raise self._failed(f"still alive after {within_s:g} s")
            await asyncio.sleep(0.01)
        _alive.discard(self)
        return self._process.wait()

    def _failed(self, what: str) -> ChildFailed:
        tail = "\n".join(self.output().splitlines()[-30:])
        return ChildFailed(f"{self.name}: {what}; its log {self.log} ends:\n{tail}")


def die_with_parent() -> None:
    """Have the kernel end this process by SIGKILL when the one that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    for child in list(_alive):
        child.kill()
