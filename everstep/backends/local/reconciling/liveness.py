"""Decides whether an agent, and what it started, is alive, gone or unknown. No other module decides this.

A file that is missing proves nothing: the state directory may have been moved. `GONE` is only what was read
and shows an end. Any error, as for want of file handles or permissions, gives `UNKNOWN`: the caller concludes
nothing and looks again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from everstep import locks
from everstep.agent.processes import proc
from everstep.agent.processes.members import Members
from everstep.agent.storage import files
from everstep.protocol import wire


class Life(Enum):
    """The state of an agent, or of the processes of a pod."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


# -- Agents -------------------------------------------------------------------------------------


def of_agent(folder: Path) -> Life:
    """Gone: its lock was opened and is free, and the process in its pid file has ended."""
    try:
        with _opened(folder) as handle:
            is_alive = locks.is_held(wire.LOCK, dir_fd=handle) or _process(handle) is not None
            return Life.ALIVE if is_alive else Life.GONE
    except (OSError, ValueError):
        return Life.UNKNOWN


def agent_of(folder: Path) -> proc.Process | None:
    """The process of the agent, if it lives and can be looked at."""
    try:
        with _opened(folder) as handle:
            return _process(handle)
    except (OSError, ValueError):
        return None


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open the folder, so that every look inside is at the same one, wherever it is moved meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def _process(folder: int) -> proc.Process | None:
    """The agent in the pid file, if it lives. Raises OSError or ValueError."""
    pid, started = _written_identity(folder)
    process = proc.find(pid) if pid else None
    return (
        process if process is not None and process.started == started and process.is_alive else None
    )


def _written_identity(folder: int) -> tuple[int, int]:
    """PID and start time of the newest agent that began here; zeros if none did so far.

    An agent writes them while it has the lock and before it does anything else.
    """
    try:
        words = files.read(Path(f"/proc/self/fd/{folder}", wire.PID), wire.SMALL_FILE_MAX).split()
    except FileNotFoundError:
        return 0, 0
    return (int(words[0]), int(words[1])) if words else (0, 0)


def shut(folder: Path) -> None:
    """Prevent agents from starting here: a new one takes the lock first, then quits without a token.

    A later look at the lock sees every agent that could still be there. Raises OSError.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)  # of a pod whose agent was never started
    with _opened(folder) as handle:
        with suppress(FileNotFoundError):
            os.unlink(wire.TOKEN, dir_fd=handle)
        os.close(os.open(wire.LOCK, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=handle))


# -- What they started ----------------------------------------------------------------------------


def of_processes(folder: Path) -> Life:
    """Gone: all processes were looked at, and none belongs to the pod except a living agent."""
    try:
        living, unknown = _members(folder)
    except (OSError, ValueError):
        return Life.UNKNOWN
    return Life.ALIVE if living else Life.UNKNOWN if unknown else Life.GONE


def sweep(folder: Path) -> Life:
    """Kill the processes of the pod except its agent; gone once there was none left to kill."""
    try:
        living, unknown = _members(folder)
    except (OSError, ValueError):
        return Life.UNKNOWN
    proc.kill(living)
    return Life.ALIVE if living else Life.UNKNOWN if unknown else Life.GONE


def _members(folder: Path) -> tuple[list[proc.Process], list[proc.Process]]:
    """The living members, and the processes that may be members. Raises OSError."""
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"{folder.parent} is missing")
    pod = Members(folder, folder.name)
    members = pod.find()
    # The pid file is read after the members: an agent writes it before it starts any of those.
    with suppress(FileNotFoundError), _opened(folder) as handle:  # without a folder no agent began
        if _process(handle) is not None:
            members = pod.find(in_cgroups=False)
    return members.living, members.unknown
