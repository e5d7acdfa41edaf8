"""Keeps an agent from beginning in its pod, by holding the lock of its folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from everstep.protocol import wire


def held(folder: Path) -> int:
    """No agent begins in this folder until what is returned is closed."""
    folder.mkdir(parents=True, mode=0o700)
    lock = os.open(folder / wire.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock
