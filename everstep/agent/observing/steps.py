"""Steps, read from what the ranks write: which is the newest, when it came, how long the gaps are."""

from __future__ import annotations

import re
from functools import partial

from everstep.agent.observing import matching
from everstep.protocol import bounds

DEFAULT = rb"(?i:\bstep)\b[ \t]*(?:[:=#][ \t]*)?(?P<step>\d+)"
SCANNED = 64 * 1024
"""Of a large piece of output a pattern that is not ours sees only the end."""
LINE_MOST = 4096
"""Of a longer line only the beginning is looked at."""
TOO_SLOW = (
    f"progress.log_pattern took {matching.LIMIT_S:g} s for one piece of output: no more steps are read from "
    "the log; give it fewer * and + that can match the same text"
)


class BadPattern(ValueError):
    """The pattern cannot be used; the message says why."""


def pattern(text: str | None) -> re.Pattern[bytes]:
    """The pattern to look for; `step` must be one of its groups."""
    if text is None:
        return re.compile(DEFAULT)
    try:
        compiled = re.compile(text.encode(), re.MULTILINE)
    except re.error as error:
        raise BadPattern(f"log_pattern: {error}") from None
    if "step" not in compiled.groupindex:
        raise BadPattern("log_pattern: it has no group named step, as in 'step (?P<step>[0-9]+)'")
    return compiled


class Search:
    """A pattern in the output of all ranks of a run, until it takes too long."""

    def __init__(self, looked_for: re.Pattern[bytes]) -> None:
        self._looked_for = looked_for
        self._is_ours = looked_for.pattern == DEFAULT
        self.is_given_up = False

    def newest(self, text: bytes) -> int | None:
        """The step that the last match names."""
        if self._is_ours:
            return self._last(text)
        if self.is_given_up:
            return None
        try:
            return matching.in_time(partial(self._last, text[-SCANNED:]))
        except matching.TooSlow:
            self.is_given_up = True
            return None

    def _last(self, text: bytes) -> int | None:
        for line in reversed(text.splitlines()):
            matches = self._looked_for.finditer(line[:LINE_MOST])
            numbers = [step for match in matches if (step := _step(match["step"])) is not None]
            if numbers:
                return numbers[-1]
        return None


def _step(digits: bytes | None) -> int | None:
    """The number as a step. None if it is larger than any training counts."""
    try:
        return bounds.step(float(digits)) if digits else None
    except ValueError:
        return None


class StepReader:
    """Finds the newest step in the output of one rank."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._carried = b""

    def newest(self, chunk: bytes) -> int | None:
        """The last step among the lines that are complete now."""
        text = self._carried + chunk
        cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1  # progress bars end lines with \r
        self._carried = text[cut:][:LINE_MOST]  # a line may come in two pieces
        return self._search.newest(text[:cut])


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
        """Note a step; return whether it is new. Gaps are measured by `ticks`, a monotonic clock."""
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
