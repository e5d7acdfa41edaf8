"""What the kernel of this machine can do."""

from __future__ import annotations

import platform
import re

_MAJOR, _MINOR = map(int, re.findall(r"\d+", platform.release())[:2])
SHOWS_EXIT_STATUSES = (_MAJOR, _MINOR) >= (6, 15)
"""Whether a process handle shows how a process ended that another one waited for."""
