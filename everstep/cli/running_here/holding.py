"""Which process serves a state directory: one at a time, and every command finds its address.

A lock says that one does. It is the kernel's, hence free as soon as its holders have ended, however
they did. They are the process that serves and its server: while one of them may still write the
database, no other process may open it. Beside the lock is where that server listens; without the lock that
is only where the last one did.
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

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        return f"http://127.0.0.1:{self.ui_port}"


class HeldLock:
    """The lock of a state directory, from `take` to `let_go`."""

    def __init__(self, directory: Path, handle: int) -> None:
        self.handle = handle
        self._directory = directory

    def tell(self, place: ServerAddress) -> None:
        """Write where the holder's server listens, in one step."""
        content = {**asdict(place), "address": place.address, "ui": place.ui}
        files.replace(self._directory / PLACE, json.dumps(content))

    def let_go(self) -> None:
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
    """Where it listened when it last did."""
    try:
        content = json.loads((directory / PLACE).read_text())
        port, ui_port = int(content["port"]), int(content["ui_port"])
        return ServerAddress(port=port, ui_port=ui_port, nodes=content.get("nodes"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
