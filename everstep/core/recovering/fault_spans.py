"""For how long each device shows a code: when that is too long, and when the device counts as sound. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from everstep.core.recovering.fault_counts import FaultReport, SoundReport

SPANS_KEPT = 1_000
"""The newest of each code and device; what is dropped is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpan:
    """The newest time for which a device shows a code; `ended` None: it still does."""

    report: FaultReport
    cluster_size: int = 0
    ended: float | None = None
    was_long: bool = False  # it was counted as one occurrence

    @property
    def key(self) -> tuple[str, int, str]:
        return self.report.node, self.report.device, self.report.code

    @property
    def long_at(self) -> float:
        """When it has lasted for too long, if it is not over before."""
        return self.report.at + (self.report.longer_than_s or 0.0)

    def is_long(self, now: float) -> bool:
        return self.long_at < self.ended if self.ended is not None else self.long_at <= now

    @property
    def sound_at(self) -> float | None:
        """From when on the device counts as sound of this code; None while it shows it."""
        return None if self.ended is None else self.ended + self.report.sound_for_s


Spans = tuple[FaultSpan, ...]


def sound_times(spans: Spans) -> dict[str, float]:
    """The devices that show none of their codes any more, each with the time at which it counts as sound."""
    times: dict[str, float] = {}
    for span in spans:
        device, at = span.report.place, math.inf if span.sound_at is None else span.sound_at
        times[device] = max(times.get(device, at), at)
    return {device: at for device, at in times.items() if at < math.inf}


def begin(spans: Spans, report: FaultReport, *, cluster_size: int) -> Spans:
    """The spans once a device shows a code; a report from before the end of the newest changes nothing."""
    new = FaultSpan(report=report, cluster_size=cluster_size)
    before = next((span for span in spans if span.key == new.key), None)
    if before is not None and (before.ended is None or report.at < before.ended):
        return spans
    return (*(span for span in spans if span is not before), new)[-SPANS_KEPT:]


def end(spans: Spans, sound: SoundReport) -> Spans:
    """The spans once a device shows a code no longer, or none of its codes."""
    return tuple(replace(span, ended=sound.at) if _is_over(span, sound) else span for span in spans)


def _is_over(span: FaultSpan, sound: SoundReport) -> bool:
    is_of_code = sound.code in (None, span.report.code)
    is_of_it = span.report.place == sound.place and is_of_code
    return is_of_it and span.ended is None and span.report.at <= sound.at
