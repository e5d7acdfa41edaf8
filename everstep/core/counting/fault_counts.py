"""How often each device of a cluster showed a code, over all jobs. Pure; the quarantine keeps these faults.

A fault is identified by its device, code and time. Jobs that share a device report the same one, and a report
may come twice: it counts once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep.core.bounds import text_bytes
from everstep.core.counting.occurrences import FaultCount, Occurrence, count
from everstep.core.counting.reports import FaultReport

FAULTS_KEPT = 1_000
"""Faults of a cluster, the newest: one that is dropped counts no more."""
FAULTS_OF_ONE_KEPT = 100
"""Faults of one code on one device: no rule needs more."""
FAULTS_BYTES_MOST = 330_000
"""Of all of them as JSON, however long the names in them are."""
_FIELDS_BYTES = 260
"""Bytes of one fault without its names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFault:
    """A fault that was reported, with its number among those within the window of its rule."""

    node: str
    device: int
    code: str
    at: float
    job: str
    counts_at: float  # `at`, but no later than its report: clocks may differ
    times: int  # its number: 3 if it was the third
    has_isolated: bool = False  # it isolated its device: the next one is number 1 again
    limit: int = 0  # by the rule of its report: this many times isolate the device
    window_s: float = 0.0  # by the same rule

    @property
    def key(self) -> tuple[str, int, str]:
        return self.node, self.device, self.code

    @property
    def count(self) -> FaultCount:
        return FaultCount(
            node=self.node, device=self.device, code=self.code, at=self.at, times=self.times
        )

    @property
    def occurrence(self) -> Occurrence:
        return Occurrence(
            node=self.node, device=self.device, code=self.code, at=self.counts_at, job=self.job
        )


def count_fault(
    faults: tuple[CountedFault, ...], report: FaultReport, now: float
) -> tuple[tuple[CountedFault, ...], CountedFault]:
    """Count a fault. Returns all faults, and this one as it was counted now or at an earlier report."""
    key = (report.node, report.device, report.code)
    same = [fault for fault in faults if fault.key == key]
    if (before := next((fault for fault in same if fault.at == report.at), None)) is not None:
        return faults, before
    new = CountedFault(
        node=report.node,
        device=report.device,
        code=report.code,
        at=report.at,
        job=report.job,
        counts_at=min(report.at, now),
        times=0,
        limit=report.times,
        window_s=report.window_s,
    )
    # Faults up to the one that isolated the device do not count again; those of other devices tell `count`
    # which faults are shared.
    isolated_at = max((f.counts_at for f in same if f.has_isolated), default=None)
    occurrences = [
        fault.occurrence
        for fault in (*(f for f in faults if f.code == report.code), new)
        if fault.key != key or isolated_at is None or fault.counts_at > isolated_at
    ]
    times = count(
        occurrences,
        of=new.occurrence,
        now=max(fault.counts_at for fault in (*same, new)),
        window_s=report.window_s,
        shared_s=report.shared_s,
    )
    new = replace(new, times=times)
    return _bounded((*faults, new), new), new


def _bounded(faults: tuple[CountedFault, ...], new: CountedFault) -> tuple[CountedFault, ...]:
    same = [fault for fault in faults if fault.key == new.key]
    if len(same) > FAULTS_OF_ONE_KEPT:
        faults = tuple(fault for fault in faults if fault is not same[0])
    return faults[-FAULTS_KEPT:]


def newest(faults: tuple[CountedFault, ...]) -> tuple[CountedFault, ...]:
    """The newest faults for which there is room."""
    left, bytes_left = [], FAULTS_BYTES_MOST
    for fault in reversed(faults):
        bytes_left -= _FIELDS_BYTES + text_bytes(fault.node, fault.code, fault.job)
        if bytes_left < 0:
            break
        left.append(fault)
    return tuple(reversed(left))


def standing(faults: tuple[CountedFault, ...], now: float) -> tuple[CountedFault, ...]:
    """The newest fault of each code and device, where it still counts at this time."""
    newest = {fault.key: fault for fault in faults}
    return tuple(
        fault
        for fault in newest.values()
        if not fault.has_isolated and now - fault.counts_at < fault.window_s
    )


def mark_isolating(
    faults: tuple[CountedFault, ...], fault: CountedFault
) -> tuple[CountedFault, ...]:
    """The faults with this one marked as the one that isolated its device."""
    return tuple(replace(one, has_isolated=True) if one is fault else one for one in faults)
