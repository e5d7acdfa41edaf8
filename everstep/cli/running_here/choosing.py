"""The questions on a terminal: what to do with a job whose `run` was interrupted, and yes or no.

Waiting for the answer blocks nothing: server and worker are kept alive meanwhile, and another signal
takes effect at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from enum import Enum


class Choice(Enum):
    """What to do with the job."""

    STOP = "stop"
    LEAVE = "leave"
    GO_ON = "go on"


QUESTION = "[s]top the job, [l]eave it running, or [g]o on watching? [{usual}] "
ANSWERS: Mapping[str, Choice] = {
    word: choice for choice in Choice for word in (choice.value, choice.value[0])
}

REASONS: Mapping[signal.Signals, str] = {
    signal.SIGINT: "Ctrl-C",
}
"""The reason of a stop by signal; any other signal has its name."""


def reason(number: signal.Signals) -> str:
    return REASONS.get(number, number.name)


async def choice(usual: Choice) -> Choice:
    """The user's choice; without a terminal the job is stopped. Another interrupt is a `CancelledError`."""
    return await answer_at(sys.stdin.fileno(), usual) if can_prompt() else Choice.STOP


def can_prompt() -> bool:
    """Whether this process has a terminal and is in its foreground."""
    try:
        if not sys.stdin.isatty():
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal, but not the one that we were started from
        return True
    except (AttributeError, ValueError):  # no standard input at all, or one that is closed
        return False


async def answer_at(terminal: int, usual: Choice) -> Choice:
    """Prompt until there is an answer. Enter is the usual one, the end of input leaves the job."""
    print()
    while True:
        print(QUESTION.format(usual=usual.value[0]), end="", flush=True)
        line = await _line(terminal)
        answer = {**ANSWERS, "": usual if line else Choice.LEAVE}.get(line.strip().lower())
        if not line.endswith("\n"):
            print()
        if answer is not None:
            return answer


async def confirms(question: str) -> bool:
    """Whether the user at the terminal agrees; Enter does not. Another interrupt is a `CancelledError`."""
    print(f"{question} [y/N] ", end="", flush=True)
    line = await _line(sys.stdin.fileno())
    if not line.endswith("\n"):
        print()
    return line.strip().lower() in ("y", "yes")


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
