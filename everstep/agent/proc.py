"""What the kernel says about processes, and how one is ended without ever meeting another.

A process is known by its number and its start: numbers are given out again. Where there is no /proc
nothing is found, and only the process groups of the ranks are ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POD = "EVERSTEP_POD"
GENERATION = "EVERSTEP_GENERATION"

ZOMBIE = "Z"
STOPPED = ("T", "t")


@dataclass(frozen=True)
class Seen:
    """One process at one moment."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    cpu: int  # clock ticks it used so far
    started: int  # clock ticks after boot

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def is_stopped(self) -> bool:
        return self.state in STOPPED


def look(pid: int) -> Seen | None:
    """The process with this number; None if there is none."""
    try:
        raw = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in brackets and may hold any character, brackets included.
    before, _, after = raw.rpartition(")")
    words = after.split()
    return Seen(
        pid=pid,
        name=before.partition("(")[2],
        state=words[0],
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[3]),
        cpu=int(words[11]) + int(words[12]),
        started=int(words[19]),
    )


def everybody() -> dict[int, Seen]:
    """Every process of the machine, as far as it may be seen."""
    try:
        names = [entry.name for entry in PROC.iterdir()]
    except OSError:
        return {}
    found = (look(int(name)) for name in names if name.isdigit())
    return {seen.pid: seen for seen in found if seen is not None}


def below(root: int, table: dict[int, Seen]) -> set[int]:
    """All descendants of a process, itself not among them."""
    children: dict[int, list[int]] = {}
    for seen in table.values():
        children.setdefault(seen.parent, []).append(seen.pid)
    found: set[int] = set()
    open_ones = [root]
    while open_ones:
        for child in children.get(open_ones.pop(), ()):
            if child not in found:
                found.add(child)
                open_ones.append(child)
    return found


class Family:
    """The descendants of a process, looked at again and again: who is a stranger stays one.

    Many agents share a machine: each looks closely at its own and at newcomers only. Good enough for
    a sample; the proof that nobody is left is `everybody`.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._strangers: set[int] = set()

    def now(self) -> dict[int, Seen]:
        try:
            present = {int(name) for name in os.listdir(PROC) if name.isdigit()}  # noqa: PTH208
        except OSError:
            return {}
        self._strangers &= present
        found = {pid: look(pid) for pid in present - self._strangers}
        table = {pid: seen for pid, seen in found.items() if seen is not None}
        ours = below(self._root, table)
        # A parent that ended meanwhile tells nothing: its child is asked again.
        self._strangers |= {p for p, s in table.items() if p not in ours and s.parent in present}
        return {pid: table[pid] for pid in ours}


def environment(pid: int) -> dict[str, str]:
    """What the process was started with; empty if that may not be read."""
    pairs = (item.decode(errors="replace").partition("=") for item in _raw(pid).split(b"\0"))
    return {name: value for name, sign, value in pairs if sign}


def _raw(pid: int) -> bytes:
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:  # noqa: PTH123  # of everybody, again and again
            return file.read()
    except OSError:
        return b""


def marked(uid: str, pids: Iterable[int], *, newest: int | None = None) -> set[int]:
    """Those that carry the mark of the pod; `newest`: of this generation at most."""
    mark, found = f"{POD}={uid}\0".encode(), set()
    for pid in pids:
        if mark not in _raw(pid) + b"\0":
            continue  # nearly everybody: their environment is not taken apart
        told = environment(pid)
        if told.get(POD) == uid and (newest is None or _generation(told) <= newest):
            found.add(pid)
    return found


def _generation(told: dict[str, str]) -> int:
    try:
        return int(told.get(GENERATION, "0"))
    except ValueError:
        return 0


def send(seen: Seen, number: int) -> None:
    """Signal this very process; nothing happens if it is gone, even if its number is not."""
    if not hasattr(os, "pidfd_open"):
        _send_plainly(seen, number)
        return
    try:
        handle = os.pidfd_open(seen.pid)
    except ProcessLookupError:
        return
    except OSError:  # an old kernel, or too many files
        _send_plainly(seen, number)
        return
    try:
        if _is_same(seen):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _send_plainly(seen: Seen, number: int) -> None:
    if _is_same(seen):
        with contextlib.suppress(ProcessLookupError):
            os.kill(seen.pid, number)


def _is_same(seen: Seen) -> bool:
    now = look(seen.pid)
    return now is not None and now.started == seen.started


def kill(victims: Iterable[Seen], *, spared: Collection[int] = ()) -> None:
    """SIGKILL to all of them, each with its whole process group unless one of the spared leads it.

    The kernel signals a group in one go, so one that keeps forking cannot slip through.
    """
    ours = {os.getpgrp(), 0, 1, *spared}
    for seen in victims:
        if seen.group not in ours and _is_same(seen):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(seen.group, signal.SIGKILL)
        send(seen, signal.SIGKILL)


def io_bytes(pid: int) -> int | None:
    """Bytes it read and wrote so far, by any means; None if that may not be read."""
    try:
        lines = (PROC / str(pid) / "io").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def written_files(pid: int) -> set[str]:
    """Paths that the process has open for writing, as far as that may be seen."""
    found: set[str] = set()
    handles = PROC / str(pid) / "fd"
    try:
        names = [entry.name for entry in handles.iterdir()]
    except OSError:
        return found
    for name in names:
        with contextlib.suppress(OSError):
            target = (handles / name).readlink()
            told = (PROC / str(pid) / "fdinfo" / name).read_text()
            if target.is_absolute() and _is_for_writing(told):
                found.add(str(target))
    return found


def _is_for_writing(told: str) -> bool:
    flags = next(line for line in told.splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def rss_bytes(pid: int) -> int:
    """Memory that is resident, shared pages included; 0 if that may not be read."""
    try:
        pages = (PROC / str(pid) / "statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
