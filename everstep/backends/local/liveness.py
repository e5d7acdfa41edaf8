"""Whether an agent lives, and what it started: alive, gone, or not known. Asked here and nowhere else.

That something cannot be found proves nothing: the state directory may have been moved, files be spent,
permissions be lost. Gone is what was looked at and seen to have ended; every error on the way there is
`UNKNOWN`, from which nobody concludes anything and which is asked again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from everstep import locks
from everstep.agent import proc, wire

MARK = "EVERSTEP_POD"
PROC = Path("/proc")


class Life(Enum):
    """What is known of an agent, or of the processes of a pod."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


# -- Agents -------------------------------------------------------------------------------------


def of_agent(folder: Path) -> Life:
    """Gone: its lock was opened and is free, and the process that it named there has ended."""
    try:
        with _opened(folder) as handle:
            if locks.is_held(wire.LOCK, dir_fd=handle):
                return Life.ALIVE
            pid, started = _named(handle)
            return _of_process(pid, started) if pid else Life.GONE
    except (OSError, ValueError):
        return Life.UNKNOWN


def agent_of(folder: Path) -> proc.Seen | None:
    """The process of the agent, if it lives and can be looked at."""
    try:
        with _opened(folder) as handle:
            pid, started = _named(handle)
    except (OSError, ValueError):
        return None
    seen = proc.look(pid)
    return seen if seen is not None and seen.started == started else None


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """One and the same folder for all that is looked at inside, wherever it is moved meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def _named(folder: int) -> tuple[int, int]:
    """Number and start of the newest agent that began here; zeros if none came so far.

    One writes them while it has the lock and before it does anything else.
    """
    try:
        handle = os.open(wire.PID, os.O_RDONLY, dir_fd=folder)
    except FileNotFoundError:
        return 0, 0
    with os.fdopen(handle) as file:
        words = file.read().split()
    return (int(words[0]), int(words[1])) if words else (0, 0)


def _of_process(pid: int, started: int) -> Life:
    try:
        told = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return Life.GONE
    words = told.rpartition(")")[2].split()
    return Life.ALIVE if int(words[19]) == started and words[0] != proc.ZOMBIE else Life.GONE


def shut(folder: Path) -> None:
    """No agent begins here any more: one takes the lock first and then leaves without a token.

    Whoever looks at the lock afterwards sees every agent that could still be there. Raises OSError.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)  # of a pod whose agent nobody started
    with _opened(folder) as handle:
        with suppress(FileNotFoundError):
            os.unlink(wire.TOKEN, dir_fd=handle)
        os.close(os.open(wire.LOCK, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=handle))


# -- What they started ----------------------------------------------------------------------------


def of_processes(uid: str) -> Life:
    """Gone: all processes of the machine were looked at, and none carries the mark of the pod."""
    try:
        return Life.ALIVE if marked(uid) else Life.GONE
    except OSError:
        return Life.UNKNOWN


def marked(uid: str) -> list[int]:
    """Every process that carries the pod's mark, the agent itself not among them. Raises OSError."""
    mark = f"{MARK}={uid}".encode()
    numbers = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if mark in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # it has ended, or is of another user and so none of ours


def sweep(uid: str) -> Life:
    """Kill whatever carries the pod's mark; gone once nothing was left to be killed."""
    try:
        left = marked(uid)
    except OSError:
        return Life.UNKNOWN
    for pid in left:
        seen = proc.look(pid)
        with suppress(OSError):
            # Looked at once more: by now the number may be somebody else's.
            if seen is not None and f"{MARK}={uid}".encode() in _environment(pid):
                proc.send(seen, signal.SIGKILL)
    return Life.ALIVE if left else Life.GONE
