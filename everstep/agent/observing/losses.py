"""The losses that one rank prints: whether the newest ones in a row are no numbers, or infinite."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from everstep.agent.observing import matching, step_patterns

WRONG_TIMES = 3
"""Wrong losses in a row that are a fault: a scaler of gradients skips single ones."""
USUAL = (
    r"(?i:(?<!best )(?<!lowest )\b(?:train(?:ing)?_)?loss)\b[\"']?[ \t]*[:=]?[ \t]*(?:tensor\()?[\"']?"
    r"(?P<loss>[-+]?(?i:nan|inf(?:inity)?|[0-9.]+(?:e[-+]?[0-9]+)?))\b"
)
"""Searched where no pattern is given. The best loss so far is infinite at first."""
NAME = b"loss"
_BAR_COUNT = re.compile(rb"(\d+)(?:/\d+|it) \[\d+:\d\d")
"""The count of a bar, which is drawn often for one step."""


class BadPattern(ValueError):
    """The pattern cannot be used; the message says why."""


def pattern(text: str) -> re.Pattern[bytes]:
    """The pattern to look for; `loss` must be one of its groups. Raises BadPattern."""
    try:
        compiled = re.compile(text.encode(), re.MULTILINE)
    except re.error as error:
        raise BadPattern(f"loss_pattern: {error}") from None
    if "loss" not in compiled.groupindex:
        raise BadPattern("loss_pattern: it has no group named loss")
    return compiled


class LossSearch:
    """The pattern for the losses in the output of a run, until it takes too long.

    `text`: None to try the usual one, empty to look for none.
    """

    def __init__(self, text: str | None) -> None:
        self._is_usual = text is None
        self._looked_for = pattern(text) if text else None
        self.is_given_up = text == ""

    def newest(self, lines: Iterable[bytes], *, most: int) -> list[LossLine]:
        """The newest lines with a loss, back to the first with a finite one. `lines`: newest first."""
        if self.is_given_up:
            return []
        search = partial(self._newest, lines, most)
        if self._is_usual:
            return search()
        try:
            return matching.in_time(search)
        except matching.TooSlow:
            self.is_given_up = True
            return []

    def _newest(self, lines: Iterable[bytes], most: int) -> list[LossLine]:
        losses: list[LossLine] = []
        for line in lines:
            match = self._match(line)
            value = None if match is None else _number(match["loss"])
            if match is None or value is None:
                continue
            losses.append(LossLine(line, match["loss"].decode(errors="replace"), value))
            if math.isfinite(value) or len(losses) == most:
                break
        return losses

    def _match(self, line: bytes) -> re.Match[bytes] | None:
        if self._looked_for is not None:
            return self._looked_for.search(line)
        if NAME not in line.lower():
            return None
        return step_patterns.compiled(USUAL).search(line)


class LossLine(NamedTuple):
    """A line with a loss."""

    line: bytes
    text: str  # of the loss
    value: float


def _number(text: bytes | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


LINES_MOST = 1_000
"""Wrong losses that are looked at in one piece of output."""


class Losses:
    """The newest losses of one rank."""

    def __init__(self, search: LossSearch) -> None:
        self._search = search
        self._wrong_times = 0  # in a row
        self._text = ""  # of the newest one
        self._count: bytes | None = None  # of the bar beside it

    @property
    def wrong(self) -> str | None:
        """The newest loss as it was printed, once as many in a row are wrong as make a fault."""
        return self._text if self._wrong_times >= WRONG_TIMES else None

    def read(self, lines: Iterable[bytes]) -> None:
        """Take in these lines, the newest first. Losses beside the same count of a bar are one."""
        for loss in reversed(self._search.newest(lines, most=LINES_MOST)):
            count = _BAR_COUNT.search(loss.line)
            if math.isfinite(loss.value):
                self._wrong_times = 0
            elif self._wrong_times == 0 or count is None or count[1] != self._count:
                self._wrong_times += 1
            self._text, self._count = loss.text, None if count is None else count[1]
