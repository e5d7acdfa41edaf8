"""What the script `everstep` calls: Ctrl-C is taken care of before anything else of ours is imported."""

from __future__ import annotations

import os
import signal
import sys

STDERR = 2
INTERRUPTED = 130  # `Exit.INTERRUPTED`, of which nothing is known yet


def open_standard_streams() -> None:
    """Open those that are closed on the null device: else the next file or socket gets their number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def run() -> None:
    """Importing the rest takes a good part of a second, in which an interrupt would be a traceback."""
    open_standard_streams()
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else a shell has it ignored, and means it
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
    import everstep.startup  # noqa: F401  # fewer collections from here on
    from everstep.cli.main import run as go_on  # not before

    signal.signal(signal.SIGINT, before)
    go_on()
