"""What is to become of a job whose `run` is interrupted: asked on a terminal, while all else goes on.

Waiting for the answer blocks nothing: server and worker are kept alive meanwhile, and another signal
is heard at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from enum import Enum


class Choice(Enum):
    """What is to become of it."""

    STOP = "stop"
    LEAVE = "leave"
    GO_ON = "go on"


QUESTION = "[s]top the job, [l]eave it running, or [g]o on watching? [{usual}] "
ANSWERS: Mapping[str, Choice] = {
    word: choice for choice in Choice for word in (choice.value, choice.value[0])
}

REASONS: Mapping[signal.Signals, str] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGHUP: "SIGHUP: its terminal is gone",
}
"""What a job that is stopped is told; any other signal has its name."""


def reason(number: signal.Signals) -> str:
    return REASONS.get(number, number.name)


async def choice(usual: Choice) -> Choice:
    """Who cannot be asked wants it stopped. Interrupted again, this is a `CancelledError`."""
    return await asked(sys.stdin.fileno(), usual) if can_be_asked() else Choice.STOP


def can_be_asked() -> bool:
    """Whether somebody is at a terminal that is ours now."""
    try:
        if not sys.stdin.isatty():
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal, but not the one that we were started from
        return True
    except (AttributeError, ValueError):  # no standard input at all, or one that is closed
        return False


async def asked(terminal: int, usual: Choice) -> Choice:
    """The answer; one that is none is asked for again. Enter is the usual one, the end leaves the job."""
    print()
    while True:
        print(QUESTION.format(usual=usual.value[0]), end="", flush=True)
        line = await _line(terminal)
        answer = {**ANSWERS, "": usual if line else Choice.LEAVE}.get(line.strip().lower())
        if not line.endswith("\n"):
            print()
        if answer is not None:
            return answer


async def _line(terminal: int) -> str:
    """What a terminal hands out at once: a line, or nothing at the end of the input."""
    loop = asyncio.get_running_loop()
    can_be_read = asyncio.Event()
    loop.add_reader(terminal, can_be_read.set)
    try:
        await can_be_read.wait()
    finally:
        loop.remove_reader(terminal)
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:  # the terminal is gone
        return ""
