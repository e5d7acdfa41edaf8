"""How often each device of a cluster showed a code, over all jobs. Pure; the quarantine keeps these faults.

A fault is identified by its device, code and time. Jobs that share a device report the same one, and a report
may come twice: it counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from everstep.core.bounds import NAME_MOST, checked_seconds, quoted
from everstep.core.deciding.decision import FaultCount, Occurrence
from everstep.core.deciding.repeats import SHARED_WITHIN_S, count
from everstep.core.errors import CommandRejected
from everstep.core.recovering.isolations import text_bytes
from everstep.core.recovering.node_names import check_place

FAULTS_KEPT = 1_000
"""Faults of a cluster, the newest: one that is dropped counts no more."""
FAULTS_OF_ONE_KEPT = 100
"""Faults of one code on one device: no rule needs more."""
FAULTS_BYTES_MOST = 330_000
"""Of all of them as JSON, however long the names in them are."""
_FIELDS_BYTES = 260
"""Of one fault without its names."""
REPORT_MOST = 200
"""Faults in one update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """A device fault as a job reports it, with the rule that its document has for the code."""

    node: str
    device: int
    code: str
    at: float
    job: str = ""
    times: int  # so often within the window isolates the device
    window_s: float
    release_s: float | None = None  # released once quiet for so long; None: by an operator
    # Not counted if another device of the same job showed it within this time.
    shared_s: float = SHARED_WITHIN_S
    isolates: bool = True  # False: the code is only counted
    longer_than_s: float | None = None  # counted only if it lasts for longer
    sound_for_s: float = 0.0  # without a code for so long the device counts as sound
    cluster_shows: bool = False  # the cluster itself shows the code, so it also shows its end

    @property
    def place(self) -> str:
        return f"{self.node}/{self.device}"


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


# -- Reading ----------------------------------------------------------------------------------------


def reports_from(raw: object) -> tuple[FaultReport, ...]:
    """The faults of an update, a JSON object {faults, now, cluster_size}; a sentence if it is none."""
    faults = raw.get("faults") if isinstance(raw, Mapping) else None
    if not isinstance(faults, list) or len(faults) > REPORT_MOST:
        raise CommandRejected(f"note_faults takes {{faults}}: a list of at most {REPORT_MOST}")
    return tuple(_report(one, f"faults[{n}]") for n, one in enumerate(faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundReport:
    """A device that shows no fault any more, as a job reports it."""

    node: str
    device: int
    at: float
    code: str | None = None  # None: it shows none of its codes any more

    @property
    def place(self) -> str:
        return f"{self.node}/{self.device}"


def sound_from(raw: object) -> tuple[SoundReport, ...]:
    """The devices of an update that are sound again: its key `sound`, which may be left out."""
    sound = raw.get("sound", []) if isinstance(raw, Mapping) else None
    if not isinstance(sound, list) or len(sound) > REPORT_MOST:
        raise CommandRejected(f"note_faults: sound is a list of at most {REPORT_MOST}")
    return tuple(_sound(one, f"sound[{n}]") for n, one in enumerate(sound))


def _sound(raw: object, path: str) -> SoundReport:
    if not isinstance(raw, Mapping):
        raise CommandRejected(f"note_faults: {path} is a device {{node, device, at}}")
    return SoundReport(
        node=_node(raw, path),
        device=int(_number(raw, "device", path, whole=True)),
        at=_time(raw.get("at"), f"{path}.at"),
        code=None if raw.get("code") is None else _name(raw, "code", path),
    )


def _report(raw: object, path: str) -> FaultReport:
    if not isinstance(raw, Mapping):
        raise CommandRejected(f"note_faults: {path} is a fault {{node, device, code, at, ...}}")
    release_s, longer_s = raw.get("release_s"), raw.get("longer_than_s")
    return FaultReport(
        node=_node(raw, path),
        code=_name(raw, "code", path),
        job=_name(raw, "job", path, default=""),
        device=int(_number(raw, "device", path, whole=True)),
        times=int(_number(raw, "times", path, whole=True)),
        at=_time(raw.get("at"), f"{path}.at"),
        window_s=_number(raw, "window_s", path),
        release_s=None if release_s is None else _number(raw, "release_s", path),
        shared_s=_number(raw, "shared_s", path, default=SHARED_WITHIN_S),
        isolates=raw.get("isolates") is not False,
        longer_than_s=None if longer_s is None else _number(raw, "longer_than_s", path),
        sound_for_s=_number(raw, "sound_for_s", path, default=0.0),
        cluster_shows=raw.get("cluster_shows") is True,
    )


def _node(raw: Mapping[str, Any], path: str) -> str:
    name = _name(raw, "node", path)
    check_place(name, command=f"note_faults: {path}")
    return name


def _name(raw: Mapping[str, Any], key: str, path: str, *, default: str | None = None) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or len(value) > NAME_MOST or (not value and default is None):
        raise CommandRejected(f"note_faults: {path}.{key} is a name, not {quoted(value)}")
    return value


def _number(
    raw: Mapping[str, Any],
    key: str,
    path: str,
    *,
    whole: bool = False,
    default: float | None = None,
) -> float:
    value = raw.get(key, default)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= 10**9:
        what = "a whole number" if whole else "seconds"
        raise CommandRejected(f"note_faults: {path}.{key} is {what}, not {quoted(value)}")
    return value


def _time(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise CommandRejected(f"note_faults: {path} is a time, not {quoted(value)}")
    try:
        return checked_seconds(value)
    except ValueError as error:
        raise CommandRejected(f"note_faults: {path} {error}") from None
