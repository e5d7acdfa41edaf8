"""Patterns of users, matched in the thread of the loop: each has its time there, and no more.

Nothing else works in that thread meanwhile, and a match cannot be left but by a signal: the interpreter
looks for one while it matches.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 1.0
"""Processor time for one match. A reasonable pattern takes a thousandth of it."""

_began: float | None = None


class TooSlow(Exception):
    """The pattern has had its time."""


def in_time(match: Callable[[], T]) -> T:
    """Run the search and return its result. Raises TooSlow."""
    global _began  # noqa: PLW0603  # there is one timer in a process, and one thread that may have its signal
    signal.signal(signal.SIGVTALRM, _looks)  # for good: one may still be on its way
    _began = time.thread_time()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S, LIMIT_S / 4)
        try:
            return match()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    finally:
        _began = None


def _looks(*_: object) -> None:
    """The timer counts for all threads; what others did is not the pattern's fault."""
    if _began is not None and time.thread_time() - _began >= LIMIT_S:
        raise TooSlow


def matching_rules(patterns: Mapping[str, str], text: str) -> tuple[list[str], bool]:
    """The names of those that are somewhere in the text, and whether each was looked for.

    All of them together have the time of one.
    """
    names: list[str] = []

    def look() -> None:
        for name, pattern in patterns.items():
            if (compiled := _compiled(pattern)) is not None and compiled.search(text):
                names.append(name)

    try:
        in_time(look)
    except TooSlow:
        return names, False
    return names, True


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        # A pattern in another regex syntax: the playbook matches it against the fact's text.
        return None
