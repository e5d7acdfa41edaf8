"""Virtual time: the clock and the events to come. It passes only by a call.

This module neither waits nor reads a real clock. `holders.py` decides when time may pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from everstep.backends.fake.settings import EPOCH

Callback = Callable[[], None]


@dataclass(slots=True, eq=False)
class Timer:
    """Something that will happen, unless it is cancelled."""

    at: float
    do: Callback
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Timeline:
    """The time now, and a queue of timers. Those of one moment happen in the order they were set."""

    def __init__(self) -> None:
        self.now = EPOCH
        self._queue: list[tuple[float, int, Timer]] = []
        self._set = 0

    def after(self, seconds: float, do: Callback) -> Timer:
        return self.at(self.now + seconds, do)

    def at(self, when: float, do: Callback) -> Timer:
        # Microseconds are as fine as a float can tell apart this far from 1970 and still add up.
        timer = Timer(at=max(self.now, round(when, 6)), do=do)
        self._set += 1
        heappush(self._queue, (timer.at, self._set, timer))
        return timer

    @property
    def next_at(self) -> float | None:
        """When the next thing happens; None if nothing will."""
        # A cancelled timer is no next event.
        while self._queue and self._queue[0][2].is_cancelled:
            heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def pass_to(self, when: float) -> None:
        """Let everything up to and including this moment happen. Never goes back."""
        while (coming := self.next_at) is not None and coming <= when:
            self.now = coming
            heappop(self._queue)[2].do()
        self.now = max(self.now, when)
