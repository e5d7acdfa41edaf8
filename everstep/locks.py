"""Whether a process holds the lock of a file. A lock ends with its holders, however they ended."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path


def is_held(path: Path | str, *, dir_fd: int | None = None) -> bool:
    """Probe the lock without taking it. Raises OSError if that fails: a missing file is no answer."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no plain file")
        # Shared, so that two probes at once do not see each other as a holder.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
