"""A container: one shim process, whose files say what became of the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SHIM = Path(__file__).with_name("shim.py")
_SIGNALLED = 128
"""Added to a signal's number, it is the exit code of what the signal ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the machine, and where the container sees it."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """All that the shim needs. `uid`, `gid`: None is as the kubelet's."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    hostname: str
    uid: int | None = None
    gid: int | None = None
    groups: list[int] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Written into the container's root: path to text."""
    read_only_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a container ended; `error` says why its command could not be started, `reason` what ended it."""

    code: int
    at: float
    error: str = ""
    reason: str = ""
    last_words: str = ""  # the end of its log, where its policy wants them


class Container:
    """A running or ended container. It outlives this process; another one may adopt it from `folder`."""

    def __init__(self, folder: Path, *, shim_pid: int) -> None:
        self.folder = folder
        self._shim_pid = shim_pid

    @classmethod
    def start(cls, folder: Path, spec: ContainerSpec) -> Container:
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps(asdict(spec)))
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
            )
        stamp = _start_time(process.pid)
        (folder / "shim.json").write_text(json.dumps({"pid": process.pid, "started": stamp}))
        # The kernel keeps the process until its parent has read its end: `_collect` does.
        process.returncode = 0
        return cls(folder, shim_pid=process.pid)

    @classmethod
    def adopt(cls, folder: Path) -> Container | None:
        """The container of an earlier kubelet; None if there never was one."""
        record = _read(folder / "shim.json")
        if record is None:
            return None
        is_same = _start_time(record["pid"]) == record["started"]
        return cls(folder, shim_pid=record["pid"] if is_same else 0)

    @property
    def is_running(self) -> bool:
        return self._shim_pid != 0

    @property
    def started_at(self) -> float | None:
        """When the command began to run; None before that."""
        record = _read(self.folder / "running.json")
        return record["at"] if record else None

    @property
    def ending(self) -> Ending | None:
        """None while it runs. A container whose shim was killed has died of the same signal."""
        if self._shim_pid:
            return None
        record = _read(self.folder / "exit.json")
        if record is not None:
            return Ending(**record)
        return Ending(
            code=_SIGNALLED + signal.SIGKILL, at=(self.folder / "spec.json").stat().st_mtime
        )

    async def started(self) -> None:
        """Return when the command runs or has ended."""
        while self._shim_pid and self.started_at is None:
            if not _is_alive(self._shim_pid):
                self._collect()
                return
            await asyncio.sleep(0.002)

    async def ended(self) -> Ending:
        """Return when no process of it is left."""
        if self._shim_pid:
            await _until_dead(self._shim_pid)
            self._collect()
        ending = self.ending
        assert ending is not None
        return ending

    def signal(self, number: signal.Signals) -> None:
        """To the container's first process, as a container runtime does."""
        record = _read(self.folder / "running.json")
        if self._shim_pid and record is not None and _is_alive(self._shim_pid):
            # While the shim lives, its child has ended a moment ago at most: the number is still free.
            with contextlib.suppress(ProcessLookupError):
                os.kill(record["pid"], number)

    async def run_inside(self, argv: Sequence[str]) -> int:
        """The exit code of a command in the container, as its user and with its variables."""
        record, spec = _read(self.folder / "running.json"), _read(self.folder / "spec.json")
        if record is None or spec is None:
            raise ProcessLookupError("the container does not run")
        words = ["nsenter", f"--target={record['pid']}", "--mount", "--pid", "--uts", "--root"]
        words.append("--wd")
        if spec["uid"] is not None:
            words += [f"--setuid={spec['uid']}", f"--setgid={spec['gid']}"]
        nowhere = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *words, "--", *argv, env=spec["env"], stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def kill(self) -> None:
        """SIGKILL to all of it, whatever state it is in."""
        if self._shim_pid and _is_alive(self._shim_pid):
            if _read(self.folder / "running.json") is not None:
                self.signal(signal.SIGKILL)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._shim_pid, signal.SIGKILL)

    def _collect(self) -> None:
        pid, self._shim_pid = self._shim_pid, 0
        if pid:  # else another task has collected it
            with contextlib.suppress(ChildProcessError):  # it may be a child of an earlier kubelet
                os.waitpid(pid, 0)


class HollowContainer:
    """No process: it runs until it has to end. For load tests of thousands of pods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started_at = time.time()
        self.ending: Ending | None = None
        self._ended = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self.ending is None

    async def started(self) -> None:
        """At once."""

    async def ended(self) -> Ending:
        await self._ended.wait()
        assert self.ending is not None
        return self.ending

    def signal(self, number: signal.Signals) -> None:
        if self.ending is None:
            self.ending = Ending(code=_SIGNALLED + number, at=time.time())
            self._ended.set()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)


async def _until_dead(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    dead = asyncio.Event()
    loop.add_reader(descriptor, dead.set)
    try:
        await dead.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _is_alive(pid: int) -> bool:
    """Whether it runs. An ended child that was not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _start_time(pid: int) -> str:
    """When the process started. With its number it distinguishes it from a later one of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
