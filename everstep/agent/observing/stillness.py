"""Since when something has not changed, as far as samples of it tell. No clock here: `now` is told."""

from __future__ import annotations

STEADY_POINTS = 1.0
"""Utilisation within so many points of one value has not changed: tools give whole numbers, and what
idles or waits in a loop flickers by one. Where every sample of a time lies in one such band, neither
their median nor their variance changes from any part of that time to another."""

MISSES = 3
"""So many samples in a row that tell nothing, and nothing is known any more."""


class Band:
    """The samples of one device since its use changed last."""

    def __init__(self) -> None:
        self._low: float | None = None
        self._high = 0.0

    def is_change(self, value: float) -> bool:
        """Whether this sample lies outside of the band; a new one begins with it. The first one does."""
        low = value if self._low is None else min(self._low, value)
        high = value if self._low is None else max(self._high, value)
        if self._low is not None and high - low <= 2 * STEADY_POINTS:
            self._low, self._high = low, high
            return False
        self._low = self._high = value
        return True

    def forget(self) -> None:
        """The next sample is a change, whatever it is."""
        self._low = None


class Still:
    """`since`: the last change, or the first sample; None: not known."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._missed = 0

    def saw(self, changed: bool | None, now: float) -> None:
        """One more sample; None if it tells nothing."""
        if changed is None:
            self._missed += 1
            if self._missed >= MISSES:
                self.since = None
            return
        self._missed = 0
        if changed or self.since is None:
            self.since = now
