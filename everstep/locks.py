"""Whether somebody holds the lock of a file. A lock ends with its holders, however they ended."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_held(path: Path | str, *, dir_fd: int | None = None) -> bool:
    """Asked by whoever only looks. Raises OSError where that cannot be told: no file is no answer."""
    handle = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    try:
        # Shared: nobody who looks is taken for a holder by another one who does.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
