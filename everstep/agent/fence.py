"""The fence: a file in a job's folders that says which generation may write there. It only grows."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from everstep.agent import book, wire

LOCK_S = 1.0
"""Some storage knows no locks, and a stopped process may hold one: then it is written without."""


def path_in(folder: str) -> Path:
    return Path(folder) / wire.FENCE_FOLDER / wire.FENCE_FILE


def generation_in(path: Path) -> int:
    """What the file says. Raises OSError if it cannot be read now."""
    text = path.read_text()
    try:
        return int(json.loads(text)["generation"])
    except (ValueError, KeyError, TypeError):
        return 0  # not ours, or not whole: it forbids nothing


def write(folder: str, *, job: str, run: str, generation: int) -> Path:
    """Afterwards the fence says this generation or a newer one. Raises OSError."""
    path = path_in(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name("lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait_for(lock)
        try:
            if generation_in(path) >= generation:
                return path
        except FileNotFoundError:
            pass
        book.write(path, json.dumps({"job": job, "run": run, "generation": generation}))
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    finally:
        os.close(lock)
    return path


def _wait_for(lock: int) -> None:
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
        except OSError:
            pass
        return
