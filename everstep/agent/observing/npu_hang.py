"""MindCluster's rule for a hung NPU: no work, memory, traffic or processor time, five times in a row.

One sample a minute of each device that has processes. A value that could not be read is no sign of a
hang: such a sample ends the row, like any other that shows work.
"""

from __future__ import annotations

from typing import NamedTuple

MINUTE_S = 60.0

CODE = "200001002"
IN_A_ROW = 5


class NpuSample(NamedTuple):
    """What a device and its processes show at one look; None: it could not be read."""

    pids: frozenset[int]
    ai_core_percent: float | None
    hbm_used: float | None  # in any unit, always the same
    packets: float | None  # sent and received since the device began to count
    cpu_s: float | None  # processor time of its processes


class Thresholds(NamedTuple):
    """Below these a device does nothing."""

    ai_core_percent: float = 5.0
    hbm_growth_percent: float = 0.0
    packets_a_minute: float = 100.0
    cpu_s: float = 5.0

    def without_negatives(self) -> Thresholds:
        """The same limits; a negative one means the default, as in MindCluster."""
        return Thresholds(
            *(limit if limit >= 0 else default for limit, default in zip(self, DEFAULTS))
        )

    def within(self, seconds: float) -> Thresholds:
        """The same limits for samples that are not a minute apart, as in a rehearsal."""
        share = seconds / MINUTE_S
        packets, cpu_s = self.packets_a_minute * share, self.cpu_s * share
        return self._replace(packets_a_minute=packets, cpu_s=cpu_s)


DEFAULTS = Thresholds()


class HangWatch(NamedTuple):
    """The newest sample of a device, and how many in a row before it showed no work."""

    before: NpuSample | None = None
    still: int = 0

    @property
    def is_hung(self) -> bool:
        return self.still >= IN_A_ROW

    def after(self, sample: NpuSample, limits: Thresholds = DEFAULTS) -> HangWatch:
        """Return the watch after one more sample; a change of the processes resets it."""
        if not sample.pids:
            return HangWatch()
        before = self.before
        if before is None or before.pids != sample.pids:
            return HangWatch(before=sample)
        still = self.still + 1 if _is_still(before, sample, limits) else 0
        return HangWatch(before=sample, still=still)


def _is_still(before: NpuSample, now: NpuSample, limits: Thresholds) -> bool:
    if now.ai_core_percent is None or now.ai_core_percent >= limits.ai_core_percent:
        return False
    growth = _growth_percent(before.hbm_used, now.hbm_used)
    packets, cpu_s = _growth(before.packets, now.packets), _growth(before.cpu_s, now.cpu_s)
    return (
        growth is not None
        and growth <= limits.hbm_growth_percent
        and packets is not None
        and packets < limits.packets_a_minute
        and cpu_s is not None
        and cpu_s < limits.cpu_s
    )


def _growth(before: float | None, now: float | None) -> float | None:
    """The growth of a counter; None if either value is unknown, or the counter was reset."""
    if before is None or now is None or now < before:
        return None
    return now - before


def _growth_percent(before: float | None, now: float | None) -> float | None:
    if before is None or now is None:
        return None
    return (now - before) / before * 100 if before else (0.0 if now == 0 else 100.0)
