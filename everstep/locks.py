"""Whether somebody holds the lock of a file. A lock ends with its holders, however they ended."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_held(path: Path) -> bool:
    """Asked by whoever only looks: a file that is not there is held by nobody."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared: nobody who looks is taken for a holder by another one who does.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
