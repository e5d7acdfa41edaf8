"""The lock of a state directory, held by the one process that runs its server, and the server's address.

It is a lock of the kernel, so it is free once its holders have ended, however they ended. Its holders are the
process that runs the server and the server itself: while one of them may write the database, no other process
may open it. A file beside the lock has the address; while the lock is free, that of the last server.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from everstep import locks
from everstep.agent.storage import files

LOCK = "server.lock"
PLACE = "server.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server listens."""

    port: int
    ui_port: int
    nodes: int | None = None  # that `dev` was given; None: as many as jobs want
    is_permanent: bool = False  # it does not end with a job: `dev` holds it, no `run`

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        return f"http://127.0.0.1:{self.ui_port}"


class HeldLock:
    """The lock of a state directory, from `take` to `release`."""

    def __init__(self, directory: Path, handle: int) -> None:
        self.handle = handle
        self._directory = directory

    def write_address(self, place: ServerAddress) -> None:
        """Write where the server of the holder listens; the file is replaced as a whole."""
        content = {**asdict(place), "address": place.address, "ui": place.ui}
        files.replace(self._directory / PLACE, json.dumps(content))

    def release(self) -> None:
        os.close(self.handle)


def take(directory: Path) -> HeldLock | None:
    """The lock, unless another process has it."""
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    return HeldLock(directory, handle)


def is_held(directory: Path) -> bool:
    """Whether a process serves this directory, or is about to."""
    try:
        return locks.is_held(directory / LOCK)
    except OSError:  # no process ever did, or `take` reports it
        return False


def current(directory: Path) -> ServerAddress | None:
    """Where the server of this directory listens, if a process serves it."""
    return last(directory) if is_held(directory) else None


def last(directory: Path) -> ServerAddress | None:
    """Where the newest server of this directory listens, or listened."""
    try:
        content = json.loads((directory / PLACE).read_text())
        ports = {"port": int(content["port"]), "ui_port": int(content["ui_port"])}
        is_permanent = content.get("is_permanent") is True
        return ServerAddress(**ports, nodes=content.get("nodes"), is_permanent=is_permanent)
    except (OSError, ValueError, KeyError, TypeError):
        return None
