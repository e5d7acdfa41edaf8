"""When a fence that is not read ends a generation."""

from __future__ import annotations

import threading
from pathlib import Path

from everstep.agent.storage import fence
from everstep.agent.storage.fence import Fence
from everstep.agent.storage.fence_watch import TICK_S, FenceWatch

READINGS = 3


def test_a_reading_that_is_due_comes_before_the_end_though_as_much_time_has_passed(
    tmp_path: Path,
) -> None:
    """No worker polls, and a fence expires sooner than two readings of healthy storage are apart."""
    fence.write(str(tmp_path), Fence("demo", "r1", "", 1))
    was_read = threading.Event()
    watch = FenceWatch(was_read.set)
    settings = {"fence_s": TICK_S, "generation": 1, "unpolled_s": 0.0}
    watch.guard({**settings, "owner": ["demo", ""], "folders": [str(tmp_path)]})
    readings = 0
    while readings < READINGS:  # as a warden looks: when something was read, and once a second
        assert watch.why() is None
        readings += was_read.wait(TICK_S)
        was_read.clear()
