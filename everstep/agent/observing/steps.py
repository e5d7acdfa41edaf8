"""Steps, read from what the ranks write: which is the newest, when it came, how long the gaps are."""

from __future__ import annotations

import re
import signal
import time

DEFAULT = rb"(?i:\bstep)\b[ \t]*(?:[:=#][ \t]*)?(?P<step>\d+)"
SCANNED = 64 * 1024
"""Of a large piece of output a pattern that is not ours sees only the end."""
LINE_MOST = 4096
"""Of a longer line only the beginning is looked at."""
LIMIT_S = 1.0
"""Of the processor, for one piece of output. The default takes a thousandth of it, in linear time."""
TOO_SLOW = (
    f"progress.log_pattern took {LIMIT_S:g} s for one piece of output: no more steps are read from "
    "the log; give it fewer * and + that can match the same text"
)


class BadPattern(ValueError):
    """The pattern cannot be used; the message says why."""


def pattern(text: str | None) -> re.Pattern[bytes]:
    """The pattern to look for; `step` must be one of its groups."""
    if text is None:
        return re.compile(DEFAULT)
    try:
        found = re.compile(text.encode(), re.MULTILINE)
    except re.error as error:
        raise BadPattern(f"log_pattern: {error}") from None
    if "step" not in found.groupindex:
        raise BadPattern("log_pattern: it has no group named step, as in 'step (?P<step>[0-9]+)'")
    return found


class Search:
    """A pattern in the output of all ranks of a run, until it takes too long.

    Nothing else works in the thread of the loop meanwhile, and a match cannot be left but by a signal: the
    interpreter looks for one while it matches.
    """

    def __init__(self, looked_for: re.Pattern[bytes]) -> None:
        self._looked_for = looked_for
        self._is_ours = looked_for.pattern == DEFAULT
        self._began: float | None = None
        self.is_given_up = False
        if not self._is_ours:
            signal.signal(signal.SIGVTALRM, self._looks)  # for good: one may still be on its way

    def newest(self, text: bytes) -> bytes | None:
        """The group of the last match."""
        if self._is_ours:
            return self._last(text)
        if self.is_given_up:
            return None
        self._began = time.thread_time()
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S, LIMIT_S / 4)
            try:
                return self._last(text[-SCANNED:])
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        except _TooSlow:
            self.is_given_up = True
            return None
        finally:
            self._began = None

    def _last(self, text: bytes) -> bytes | None:
        for line in reversed(text.splitlines()):
            found = None
            for match in self._looked_for.finditer(line[:LINE_MOST]):
                found = match
            if found is not None:
                return found.group("step")
        return None

    def _looks(self, *_: object) -> None:
        """The timer counts for all threads; what others did is not the pattern's fault."""
        if self._began is not None and time.thread_time() - self._began >= LIMIT_S:
            raise _TooSlow


class _TooSlow(Exception):
    """The pattern has had its time."""


class Reader:
    """Finds the newest step in the output of one rank."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._carried = b""

    def newest(self, chunk: bytes) -> int | None:
        """The last step among the lines that are complete now."""
        text = self._carried + chunk
        cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1  # progress bars end lines with \r
        self._carried = text[cut:][:LINE_MOST]  # a line may come in two pieces
        digits = self._search.newest(text[:cut])
        try:
            return int(float(digits)) if digits else None
        except (ValueError, OverflowError):
            return None


class Steps:
    """The steps of all ranks of one run."""

    def __init__(self) -> None:
        self.newest: int | None = None
        self.at: float | None = None
        self.first_at: float | None = None
        self.longest_gap_s = 0.0
        self._last: dict[int, int] = {}
        self._ticked: float | None = None

    def of(self, rank: int) -> int | None:
        """The newest step of one rank."""
        return self._last.get(rank)

    def saw(self, rank: int, step: int, *, now: float, ticks: float) -> bool:
        """Whether that was news. `ticks` is a clock that nobody sets; gaps are measured by it."""
        if self._last.get(rank) == step:
            return False
        self._last[rank] = step
        if self._ticked is not None:
            self.longest_gap_s = max(self.longest_gap_s, ticks - self._ticked)
        self._ticked = ticks
        self.newest = step if self.newest is None else max(self.newest, step)
        self.at = now
        self.first_at = self.first_at or now
        return True
