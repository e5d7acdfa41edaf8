"""What the script `everstep` calls: Ctrl-C is taken care of before anything else of ours is imported."""

from __future__ import annotations

import gc
import os
import signal

INTERRUPTED = 130  # `Exit.INTERRUPTED`, of which nothing is known yet


COLLECT_AFTER = 50_000
"""Objects between two garbage collections: at the usual 700 they take a tenth of the imports' time."""


def run() -> None:
    """Importing the rest takes a good part of a second, in which an interrupt would be a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else a shell has it ignored, and means it
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
    gc.set_threshold(COLLECT_AFTER)
    from everstep.cli.main import run as go_on  # not before

    signal.signal(signal.SIGINT, before)
    go_on()
