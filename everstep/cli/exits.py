"""How a command ends: the pinned exit codes, and the one exception that carries a sentence out.

`Failed` is for the user: its message says what is wrong and what to try next, on one line.
"""

from __future__ import annotations

from enum import IntEnum

from everstep.processes import ProcessFailed


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


def not_running(error: ProcessFailed) -> Failed:
    """What it comes to that a server or a worker of ours does not run."""
    # A worker that cannot use what it is told ends as a command does that cannot.
    is_usage = (error.name, error.code) == ("worker", Exit.USAGE)
    return Failed(Exit.USAGE if is_usage else Exit.UNREACHABLE, error.short)
