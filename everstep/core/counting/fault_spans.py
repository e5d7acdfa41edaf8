"""Times for which devices show codes: when one is too long, and when a device counts as sound. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from everstep.core.bounds import text_bytes
from everstep.core.counting.reports import FaultReport, SoundReport
from everstep.core.world import NodeView

SPANS_KEPT = 1_000
"""The most spans that are kept, one of each code and device."""
SPANS_BYTES_MOST = 450_000
"""Of all of them as JSON, however long the names in them are."""
_FIELDS_BYTES = 470
"""Bytes of one span without its names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpan:
    """The newest time for which a device shows a code; `ended` None: it still does."""

    report: FaultReport
    cluster_size: int = 0
    ended: float | None = None
    was_long: bool = False  # it was counted as one occurrence
    # The newest later report of the code while the span is open. If the span turns out to have ended before
    # that, a new one begins then.
    reported_again_at: float | None = None

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
    """The spans once a device shows a code; a report from before the end of the newest changes nothing.

    An open span stores the time of a later report: the code may have been away in between.
    """
    new = FaultSpan(report=report, cluster_size=cluster_size)
    before = next((span for span in reversed(spans) if span.key == new.key), None)
    if before is None or (before.ended is not None and report.at >= before.ended):
        return (*(span for span in spans if span.key != new.key), new)
    if before.ended is None and report.at > (before.reported_again_at or before.report.at):
        again = replace(before, reported_again_at=report.at)
        return tuple(again if span is before else span for span in spans)
    return spans


def end(spans: Spans, sound: SoundReport) -> Spans:
    """The spans once a device shows a code no longer, or none of its codes."""
    return tuple(part for span in spans for part in _parts(span, sound))


def bounded(spans: Spans) -> tuple[Spans, Spans]:
    """The spans to keep, in order, and those that are too many: what ended first, then what began first.

    A new one isolates its device if it lasts. The oldest would only release one that may be sound.
    """
    by_need = sorted(spans, key=lambda span: (span.ended is None, span.ended or span.report.at))
    count = _count_with_room(reversed(by_need))
    if count == len(spans):
        return spans, ()
    first = len(spans) - count
    needed = sorted(by_need[first:], key=lambda span: span.report.at)
    return tuple(needed), tuple(by_need[:first])


def _count_with_room(spans: Iterable[FaultSpan]) -> int:
    """How many of the first spans there is room for."""
    count, bytes_left = 0, SPANS_BYTES_MOST
    for span in spans:
        report = span.report
        bytes_left -= _FIELDS_BYTES + text_bytes(report.node, report.code, report.job)
        if bytes_left < 0 or count == SPANS_KEPT:
            break
        count += 1
    return count


def _parts(span: FaultSpan, sound: SoundReport) -> Iterator[FaultSpan]:
    """The span, ended if that was its code; where the code was reported after this end, a new one, too."""
    if not _is_over(span, sound):
        yield span
        return
    yield replace(span, ended=sound.at, reported_again_at=None)
    if (at := span.reported_again_at) is not None and at > sound.at:
        yield FaultSpan(report=replace(span.report, at=at), cluster_size=span.cluster_size)


def _is_over(span: FaultSpan, sound: SoundReport) -> bool:
    is_of_code = sound.code in (None, span.report.code)
    is_of_it = span.report.place == sound.place and is_of_code
    return is_of_it and span.ended is None and span.report.at <= sound.at


def shown_by_cluster(spans: Spans) -> Spans:
    """The open spans that isolate a device and of which the cluster itself showed the code."""
    return tuple(
        span for span in spans if span.was_long and span.ended is None and span.report.cluster_shows
    )


def ended_on(spans: Spans, nodes: Iterable[NodeView], *, at: float) -> tuple[SoundReport, ...]:
    """The ends of such codes, by nodes that were read at this time, after the spans.

    Only where a node lists its codes, and this one no more: unknown is not sound.
    """
    codes = {
        node.name: {(device.index, code) for device in node.devices for code in device.codes}
        for node in nodes
        if node.ready and node.lists_codes
    }
    reports = [span.report for span in shown_by_cluster(spans) if span.report.node in codes]
    return tuple(
        SoundReport(node=report.node, device=report.device, at=at, code=report.code)
        for report in reports
        if (report.device, report.code) not in codes[report.node]
    )
