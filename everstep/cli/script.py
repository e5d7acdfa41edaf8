"""What the script `everstep` calls: Ctrl-C is taken care of before anything else of ours is imported."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130  # `Exit.INTERRUPTED`, of which nothing is known yet


def run() -> None:
    """Importing the rest takes a good part of a second, in which an interrupt would be a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else a shell has it ignored, and means it
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
    import everstep.startup  # noqa: F401  # fewer collections from here on
    from everstep.cli.main import run as go_on  # not before

    signal.signal(signal.SIGINT, before)
    go_on()
