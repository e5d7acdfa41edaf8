"""The agent's time: seconds since the epoch when it began, and from then on with the machine's up-time.

Setting the machine's clock changes nothing here: what came a second ago is a second old. The `now` of a
state is by this clock too, so a reader can compute the age of everything in it.
"""

from __future__ import annotations

import time


def _running_s() -> float:
    """How long the machine has been up, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BEGAN = time.time() - _running_s()


def now() -> float:
    return _BEGAN + _running_s()
