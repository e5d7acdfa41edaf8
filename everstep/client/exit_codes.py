"""How a command ends: the pinned exit codes, and the one exception that carries a sentence out.

`Failed` is for the user: its message says what is wrong and what to try next, on one line.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What scripts may rely on."""

    DONE = 0
    JOB_FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class Failed(Exception):
    """The command ends here, with this code and this sentence."""

    def __init__(self, code: Exit, message: str) -> None:
        self.code = code
        super().__init__(message)
