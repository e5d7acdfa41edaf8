"""When a sampled value changed last. No clock here: `now` is an argument."""

from __future__ import annotations

STEADY_POINTS = 1.0
"""Utilisation within this many points of one value counts as unchanged: tools print whole numbers, and a
device that idles or waits in a loop flickers by one. If all samples of a time lie in one such band, neither
their median nor their variance changes within that time."""

MISSES = 3
"""After this many samples in a row without a value the state is unknown."""


class Band:
    """The samples of one device since its use changed last."""

    def __init__(self) -> None:
        self._low: float | None = None
        self._high = 0.0

    def add(self, value: float) -> bool:
        """Add a sample; return whether it is a change: the first, or one outside of the band.

        A change begins a new band.
        """
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
    """`changed_at` is the time of the last change or of the first sample; None if it is unknown."""

    def __init__(self) -> None:
        self.changed_at: float | None = None
        self._missed = 0

    def saw(self, changed: bool | None, now: float) -> None:
        """Take one more sample: whether the value changed, or None if it is unknown."""
        if changed is None:
            self._missed += 1
            if self._missed >= MISSES:
                self.changed_at = None
            return
        self._missed = 0
        if changed or self.changed_at is None:
            self.changed_at = now
