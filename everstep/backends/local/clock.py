"""The cluster's time: seconds since the epoch that never go back, the same for every worker.

It runs with the machine, not with its wall clock: when that is set, ours goes on as before.
"""

from __future__ import annotations

import time
from pathlib import Path

from everstep.backends.local.database.settings_table import setting, store_setting
from everstep.backends.local.database.store import Db

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def _boot_id() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else "this machine"


def _running_s() -> float:
    """How long the machine has been up."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def anchor(db: Db) -> float:
    """What has to be added to the machine's own time; agreed upon once for each of its starts."""
    name = f"clock/{_boot_id()}"
    if (agreed := setting(db, name)) is not None:
        return float(agreed)
    offset = time.time() - _running_s()
    store_setting(db, name, repr(offset))
    return offset


def now(offset: float) -> float:
    return round(_running_s() + offset, 6)
