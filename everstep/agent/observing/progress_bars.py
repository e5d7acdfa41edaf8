"""The step of a training from the number that a progress bar shows (the groups of `step_patterns`)."""

from __future__ import annotations

import re

from everstep.protocol import bounds

FIRST_EPOCHS = {"bar_epoch_0": 0, "bar_epoch_1": 1}


class Bars:
    """The bars of one rank. The first one counts until it is full; bars of a validation beside it do not."""

    def __init__(self) -> None:
        self._end: int | None = None  # of the bar that counts
        self._last = 0  # that it showed
        self._counted = 0  # before it began again

    def step(self, match: re.Match[bytes]) -> int | None:
        """The step that this match names. None: it names none, or that of another bar."""
        number, groups = _number(match["step"]), match.groupdict()
        if number is None:
            return None
        end = _number(groups.get("bar_total") or groups.get("bar_end"))
        if end is None:
            return number
        for name, first in FIRST_EPOCHS.items():
            if (epoch := _number(groups.get(name))) is not None:
                return bounds.step(max(0, epoch - first) * end + number)
        return self._of_bar(number, end, begins_again="bar_total" in groups)

    def _of_bar(self, number: int, end: int, *, begins_again: bool) -> int | None:
        if self._end is None or (self._end != end and self._last >= self._end):
            self._end, self._counted = end, 0
        elif self._end != end:
            return None
        elif number < self._last and begins_again:
            self._counted += end
        self._last = number
        return bounds.step(self._counted + number)


def _number(digits: bytes | None) -> int | None:
    """The number; None if it is larger than any training counts."""
    try:
        return bounds.step(float(digits)) if digits else None
    except ValueError:
        return None
