"""Steps, read from what the ranks write: which is the newest, when it came, how long the gaps are."""

from __future__ import annotations

import re

DEFAULT = rb"(?i:\bstep)\b[ \t]*[:=#]?[ \t]*(?P<step>\d+)"
SCANNED = 64 * 1024
"""A pattern that is not ours may be slow: it sees only the end of a large piece of output."""
CARRIED = 4096
"""A line may come in two pieces; of longer ones only so much of the beginning is kept."""


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


class Reader:
    """Finds the newest step in the output of one rank."""

    def __init__(self, looked_for: re.Pattern[bytes]) -> None:
        self._looked_for = looked_for
        self._carried = b""

    def newest(self, chunk: bytes) -> int | None:
        """The last step among the lines that are complete now."""
        is_ours = self._looked_for.pattern == DEFAULT
        text = self._carried + (chunk if is_ours else chunk[-SCANNED:])
        cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1  # progress bars end lines with \r
        self._carried = text[cut:][:CARRIED]
        found = None
        for match in self._looked_for.finditer(text, 0, cut):
            found = match
        if found is None or not (digits := found.group("step")):
            return None
        try:
            return int(float(digits))
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
