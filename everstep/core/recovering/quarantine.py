"""The isolated nodes of one cluster: who isolated what, why, until when, and when that is held back.

In: requests of jobs and operators (`isolate`, `release`), reports of jobs on devices (`take_report`), and the
cluster's time (`pass_time`, `expired_nodes`). Out: the changed `Quarantine` and the answer to the sender.
Pure; the NodeQuarantine workflow keeps one `Quarantine` and drives it, the simulator another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from everstep.core.bounds import (
    LAST_SECOND,
    NAME_MOST,
    NUMBER_MOST,
    TEXT_MOST,
    checked_seconds,
    dated,
    plain_start,
    quoted,
    seconds,
)
from everstep.core.counting import fault_counts, fault_spans, reports
from everstep.core.counting.fault_counts import CountedFault, count_fault, mark_isolating
from everstep.core.counting.fault_spans import FaultSpan
from everstep.core.counting.occurrences import FaultCount
from everstep.core.counting.reports import FaultReport, SoundReport
from everstep.core.errors import CommandRejected
from everstep.core.node_names import check_place
from everstep.core.recovering import isolations
from everstep.core.recovering.isolations import ENTRIES_MOST, Entries, IsolatedNode

QuarantineVerdict = Literal["isolated", "held", "only_node", "full"]

OPERATOR = "operator"
"""The source of a request that names none."""
COUNTS = "fault counts"
"""Who isolates a device that showed one code too often."""
DURATION = "fault duration"
"""Who isolates a device that shows one code for too long, until it is sound."""
UNFOLLOWED = "fault duration, end not followed"
"""Who isolates such a device once more codes last than are followed: until an operator releases it."""
BY_REPORT = "; unless a job reports its end, an operator releases it"
BY_HAND = "; too many codes last to follow its end: an operator releases it"
"""Ends of reasons: who releases a device that shows one code for too long."""

BRAKE_FROM_NODES = 20
BRAKE_SHARE = 0.2
BRAKE_WINDOW_S = 3600.0
"""In a cluster of so many nodes or more, suspicions isolate at most this share within the window."""
HELD_WINDOWS = 24
"""For so many windows an operator may agree to a suspicion that the brake holds back. Then it is dropped."""

NEARLY_FULL = 0.8
"""From this share of ENTRIES_MOST on an answer says so."""
NEARLY = (
    "{count} nodes and devices are isolated, of at most "
    f"{ENTRIES_MOST}; release those that are sound"
)
FULL = (
    "{count} nodes and devices are isolated on cluster {cluster}, the most that there may be; "
    "`everstep nodes` shows them, `everstep release NODE` makes room"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A node to isolate."""

    node: str
    reason: str
    by: str
    until: float | None = None
    proven: bool = True
    cluster_size: int = 0  # 0: unknown, then there is no brake
    at: float = 0.0
    window_s: float = BRAKE_WINDOW_S  # in which suspicions count together; a rehearsal shortens it


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineAnswer:
    """What became of a request, and why."""

    verdict: QuarantineVerdict
    why: str = ""
    note: str = ""  # what an operator should do about the quarantine itself


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What a job reports of devices, at a time of the cluster."""

    faults: tuple[FaultReport, ...] = ()
    sound: tuple[SoundReport, ...] = ()  # devices that show no fault any more
    now: float
    cluster_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswer:
    """The counts of the faults of a report, in its order, and the devices that they isolated."""

    counts: tuple[FaultCount, ...]
    isolated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """All isolations of a cluster, and what was held back until an operator agrees."""

    cluster: str
    nodes: Entries = field(default_factory=dict)
    held: Entries = field(default_factory=dict)
    faults: tuple[CountedFault, ...] = ()  # of devices, over all jobs, newest last
    spans: fault_spans.Spans = ()  # of codes that isolate a device once they last too long


# -- Reading what jobs and operators send ------------------------------------------------------------


def checked_request(raw: object, *, now: float) -> Request:
    """The request. Raises CommandRejected, with a sentence, if a job or an operator may not make it now."""
    request = request_from(raw, now=now)
    entry: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    for key, most in _TEXTS.items():
        if len(str(entry.get(key) or "")) > most:
            raise CommandRejected(f"isolate: {key} has more than {most} characters")
    check_place(request.node, command="isolate")
    at, until = (_checked_time("isolate", key, entry.get(key)) for key in ("at", "until"))
    if until is not None and until <= (at or now):
        raise CommandRejected(
            f"isolate: until is over already ({quoted(entry['until'])}); leave it out to keep "
            f"{request.node} isolated until somebody releases it"
        )
    return request


def check_now(raw: object) -> None:
    """Raises CommandRejected, with a sentence, if this is no time by which to release what is over."""
    now_from(raw)
    _checked_time("expire", "now", raw.get("now") if isinstance(raw, Mapping) else None)


NO_REASON = "an operator asked for it"
"""The reason of an isolation for which none was given. A known one stays in its place."""


def request_from(raw: object, *, now: float) -> Request:
    """The request that a job or an operator made, as a JSON object.

    Raises CommandRejected, with a sentence, if it is none. What was accepted once is read for ever, even if
    `checked_request` would refuse it today.
    """
    if not isinstance(raw, Mapping) or not isinstance(raw.get("node"), str) or not raw["node"]:
        raise CommandRejected("isolate takes {node, reason, by, until}; node is the name of a node")
    unknown = sorted(set(raw) - _KEYS)
    if unknown:
        raise CommandRejected(
            f"isolate: unknown key {unknown[0]!r}; its keys are node, reason, by, until"
        )
    return Request(
        node=raw["node"],
        reason=plain_start(str(raw.get("reason") or NO_REASON), TEXT_MOST),
        by=plain_start(str(raw.get("by") or OPERATOR), NAME_MOST),
        until=_time(raw.get("until")),
        proven=raw.get("proven") is not False,
        cluster_size=_size(raw.get("cluster_size")),
        at=_time(raw.get("at")) or now,
        window_s=_seconds(raw.get("window_s")) or BRAKE_WINDOW_S,
    )


_TEXTS: Mapping[str, int] = {"by": TEXT_MOST, "reason": TEXT_MOST}
"""Most characters: all isolations go into one answer, and on to the next run."""

_KEYS = frozenset({"node", "reason", "by", "until", "proven", "cluster_size", "at", "window_s"})


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        return None
    return float(min(value, LAST_SECOND))


def _size(value: object) -> int:
    """A number of nodes; 0 for anything else, as if it were not known."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 <= value <= NUMBER_MOST else 0


def _time(value: object) -> float | None:
    """Seconds, or a moment in RFC 3339; the nearest that a date can show."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dated(value)
    try:
        return dated(seconds(str(value)))
    except ValueError:
        message = f"{quoted(value)} is no time; write it like 2026-01-31T12:00:00Z"
        raise CommandRejected(message) from None


def _checked_time(name: str, key: str, value: Any) -> float | None:
    """The time, if it is one from 1970 to 9999."""
    try:
        return None if value is None else checked_seconds(value)
    except ValueError as error:
        raise CommandRejected(f"{name}: {key} {error}") from None


def scaled(request: Request, time_scale: float) -> Request:
    """The same request with its window divided by `time_scale`, for rehearsals."""
    return replace(request, window_s=request.window_s / time_scale)


def node_from(raw: object) -> str:
    """The node that is to be used again."""
    node = raw.get("node") if isinstance(raw, Mapping) else None
    if not isinstance(node, str) or not node:
        raise CommandRejected("release takes {node}: the name of a node")
    return node


def now_from(raw: object) -> float:
    """The time by which what is over is released."""
    now = _time(raw.get("now")) if isinstance(raw, Mapping) else None
    if now is None:
        raise CommandRejected("expire takes {now}: a time")
    return now


def device_report_from(raw: object, *, now: float) -> DeviceReport:
    """The report of a job, a JSON object. Raises CommandRejected, with a sentence, if it is none."""
    faults, sound = reports.reports_from(raw), reports.sound_from(raw)
    entry: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    return DeviceReport(
        faults=faults,
        sound=sound,
        now=_checked_time("note_faults", "now", entry.get("now")) or now,
        cluster_size=_size(entry.get("cluster_size")),
    )


# -- Isolating ----------------------------------------------------------------------------------------


def isolate(quarantine: Quarantine, request: Request) -> tuple[Quarantine, QuarantineAnswer]:
    """Isolate the node, unless that would take the last one or too many on mere suspicion.

    Where there is no room for another entry, nothing is isolated either.
    """
    quarantine = _without_suspicion(quarantine, request)
    entry = quarantine.nodes.get(request.node)
    if entry is not None and request.by == OPERATOR:
        reason = entry.reason if request.reason == NO_REASON else request.reason
        entry = replace(entry, reason=reason, by=request.by, until=request.until)
        why = "it was isolated already; this reason and time hold"
        return _entered(quarantine, entry, request.at, why)
    if entry is not None and (request.cluster_size == 1 or not _outlasts(request, entry)):
        return quarantine, QuarantineAnswer(verdict="isolated", why="it was isolated already")
    if request.cluster_size == 1:
        return quarantine, QuarantineAnswer(
            verdict="only_node", why="the only node is never isolated"
        )
    entry = IsolatedNode(
        node=request.node,
        reason=request.reason,
        by=request.by,
        since=request.at,
        until=request.until,
        proven=request.proven,
    )
    if not request.proven and _brake(quarantine, request):
        held_until = request.at + HELD_WINDOWS * request.window_s
        until = held_until if entry.until is None else min(entry.until, held_until)
        entry = isolations.bounded(replace(entry, until=until))
        held = _held_beside(quarantine.nodes, {**quarantine.held, request.node: entry})
        within = f"within {request.window_s:g} s"
        why = f"too many nodes were isolated on suspicion {within}: an operator must agree"
        return replace(quarantine, held=held), QuarantineAnswer(verdict="held", why=why)
    return _entered(quarantine, entry, request.at)


def _entered(
    quarantine: Quarantine, entry: IsolatedNode, now: float, why: str = ""
) -> tuple[Quarantine, QuarantineAnswer]:
    """The quarantine with this entry, or as it was if there is no room for it.

    Room is made by dropping the isolations whose time is over, those that ended first, before the janitor
    releases them; then the oldest suspicions that are held back. Never an isolation that lasts.
    """
    nodes = {**quarantine.nodes, entry.node: isolations.bounded(entry)}
    for node in _first_ended(quarantine, now)[: max(len(nodes) - ENTRIES_MOST, 0)]:
        nodes.pop(node)
    if len(nodes) > ENTRIES_MOST:
        return quarantine, QuarantineAnswer(verdict="full", why=_fullness(quarantine))
    held = {name: e for name, e in quarantine.held.items() if name != entry.node}
    quarantine = replace(quarantine, nodes=nodes, held=_held_beside(nodes, held))
    note = NEARLY.format(count=len(nodes)) if len(nodes) > NEARLY_FULL * ENTRIES_MOST else ""
    return quarantine, QuarantineAnswer(verdict="isolated", why=why, note=note)


def _first_ended(quarantine: Quarantine, now: float) -> list[str]:
    """The nodes whose time is over, those first whose time ended first."""
    ends = {node: quarantine.nodes[node].until or 0.0 for node in expired_nodes(quarantine, now)}
    return sorted(ends, key=lambda node: ends[node])


def _held_beside(nodes: Entries, held: Entries) -> Entries:
    """The newest suspicions that are held back, as many as the isolated nodes leave room for."""
    most = ENTRIES_MOST - len(nodes)
    return held if len(held) <= most else isolations.newest(held, most=most)


def _fullness(quarantine: Quarantine) -> str:
    return FULL.format(cluster=quarantine.cluster, count=len(quarantine.nodes))


def check_room(quarantine: Quarantine, request: Request) -> None:
    """Raise CommandRejected if there is no room to isolate this node."""
    if isolate(quarantine, request)[1].verdict == "full":
        raise CommandRejected(_fullness(quarantine))


def _without_suspicion(quarantine: Quarantine, request: Request) -> Quarantine:
    """The quarantine with the node's isolation turned from suspicion into proof, if the request is a proof.

    A code that lasts too long (DURATION) proves only that: the brake goes on counting what COUNTS suspects.
    """
    entry = quarantine.nodes.get(request.node)
    if entry is None or not request.proven or request.by == DURATION:
        return quarantine
    return replace(quarantine, nodes={**quarantine.nodes, entry.node: replace(entry, proven=True)})


def _outlasts(request: Request, entry: IsolatedNode) -> bool:
    """Whether the request keeps the node isolated for longer than its entry does."""
    if request.by == DURATION:  # it ends when the device is sound, which may be at any time
        return False
    if entry.by == DURATION:
        return True
    if entry.until is None or (request.until is not None and request.until <= entry.until):
        return False
    # A suspicion extends only another one: the end that a job or an operator set stays.
    return request.proven or entry.by == COUNTS


# -- Faults of devices: how often, and how long ---------------------------------------------------------


def take_report(quarantine: Quarantine, report: DeviceReport) -> tuple[Quarantine, DeviceAnswer]:
    """Count what a job reports of devices, and do what is due by the time of its report."""
    quarantine, answer = count_faults(
        quarantine, report.faults, now=report.now, cluster_size=report.cluster_size
    )
    quarantine = _with_bounded_spans(end_faults(quarantine, report.sound))
    quarantine = replace(quarantine, faults=fault_counts.newest(quarantine.faults))
    return pass_time(quarantine, report.now), answer


def count_faults(
    quarantine: Quarantine, reports: Iterable[FaultReport], *, now: float, cluster_size: int
) -> tuple[Quarantine, DeviceAnswer]:
    """Count device faults; isolate each device whose count reaches its rule.

    A report that came before changes nothing and is answered as it was then. One with `longer_than_s` only
    begins a span: `pass_time` counts it if it lasts.
    """
    counts: list[FaultCount] = []
    isolated: list[str] = []
    for report in reports:
        if report.longer_than_s is not None:
            spans = fault_spans.begin(quarantine.spans, report, cluster_size=cluster_size)
            quarantine = replace(quarantine, spans=spans)
            continue
        faults, fault = count_fault(quarantine.faults, report, now)
        # For a report that came before, `count_fault` returns the same tuple.
        is_new = faults is not quarantine.faults
        quarantine = replace(quarantine, faults=faults)
        counts.append(fault.count)
        if not is_new:
            continue
        entry = quarantine.nodes.get(report.place)
        if report.isolates and fault.times >= report.times:
            request = _device_request(report, fault, cluster_size)
            quarantine, answer = isolate(quarantine, request)
            if answer.verdict == "isolated":
                quarantine = replace(quarantine, faults=mark_isolating(quarantine.faults, fault))
                isolated.append(report.place)
        elif entry is not None and entry.by == COUNTS:
            quarantine = _extend(quarantine, entry, report, fault)
    return quarantine, DeviceAnswer(counts=tuple(counts), isolated=tuple(isolated))


def end_faults(quarantine: Quarantine, devices: Iterable[SoundReport]) -> Quarantine:
    """The quarantine once these devices show no fault any more."""
    spans = quarantine.spans
    for device in devices:
        spans = fault_spans.end(spans, device)
    return replace(quarantine, spans=spans)


def _with_bounded_spans(quarantine: Quarantine) -> Quarantine:
    """The quarantine without the spans that are too many, and the isolations that nothing ends without them.

    A code that is not followed any more may last: the end of another one does not release its device.
    """
    spans, dropped = fault_spans.bounded(quarantine.spans)
    places = {span.report.place for span in spans}
    unfollowed = {
        span.report.place
        for span in dropped
        if span.ended is None or span.report.place not in places
    }
    nodes = {
        name: replace(entry, by=UNFOLLOWED, reason=entry.reason.removesuffix(BY_REPORT) + BY_HAND)
        if entry.by == DURATION and name in unfollowed
        else entry
        for name, entry in quarantine.nodes.items()
    }
    return replace(quarantine, spans=spans, nodes=nodes)


def pass_time(quarantine: Quarantine, now: float) -> Quarantine:
    """Do what is due by this time.

    Count faults that have lasted for too long and isolate their devices, release those that are sound, and
    drop suspicions that were held back for too long.
    """
    held = {name: e for name, e in quarantine.held.items() if e.until is None or e.until > now}
    quarantine = replace(quarantine, held=held)
    for span in quarantine.spans:
        if not span.was_long and span.is_long(now):
            quarantine = _count_long_fault(quarantine, span, now)
    for node, sound_at in _sound_times(quarantine).items():
        if sound_at <= now:
            quarantine, _ = release(quarantine, node)
    return quarantine


def _sound_times(quarantine: Quarantine) -> dict[str, float]:
    """The devices isolated by DURATION that show no code any more, each with the time it counts as sound."""
    times = fault_spans.sound_times(quarantine.spans)
    isolated = [entry.node for entry in quarantine.nodes.values() if entry.by == DURATION]
    return {device: times[device] for device in isolated if device in times}


def _count_long_fault(quarantine: Quarantine, span: FaultSpan, now: float) -> Quarantine:
    """Count one occurrence of its code, and isolate the device until it is sound."""
    spans = tuple(replace(one, was_long=True) if one is span else one for one in quarantine.spans)
    quarantine, place = replace(quarantine, spans=spans), span.report.place
    report = replace(span.report, at=span.long_at, longer_than_s=None)
    quarantine, _ = count_faults(quarantine, [report], now=now, cluster_size=span.cluster_size)
    ending = "" if report.cluster_shows else BY_REPORT
    request = Request(
        node=place,
        reason=f"{report.code} lasts longer than {span.report.longer_than_s:g} s{ending}",
        by=DURATION,
        cluster_size=span.cluster_size,
        at=report.at,
    )
    return isolate(quarantine, request)[0]


def next_change_at(quarantine: Quarantine) -> float | None:
    """When `pass_time` next isolates or releases a device. It drops a held suspicion on its next call."""
    long_times = [
        span.long_at
        for span in quarantine.spans
        if not span.was_long and (span.ended is None or span.is_long(span.ended))
    ]
    return min([*long_times, *_sound_times(quarantine).values()], default=None)


def _device_request(report: FaultReport, fault: CountedFault, cluster_size: int) -> Request:
    """The request to isolate a device whose count is full: a suspicion, so the brake may hold it."""
    return Request(
        node=report.place,
        reason=f"{report.code} came {fault.times} times within {report.window_s:g} s",
        by=COUNTS,
        until=_quiet_until(report, fault),
        proven=False,
        cluster_size=cluster_size,
        at=fault.counts_at,
    )


def _quiet_until(report: FaultReport, fault: CountedFault) -> float | None:
    return None if report.release_s is None else fault.counts_at + report.release_s


def _extend(
    quarantine: Quarantine, entry: IsolatedNode, report: FaultReport, fault: CountedFault
) -> Quarantine:
    """Keep a device that shows its code again isolated until it is quiet for as long as its rule says."""
    until = _quiet_until(report, fault)
    if entry.until is None or until is None or until <= entry.until:
        return quarantine
    nodes = {**quarantine.nodes, entry.node: replace(entry, until=until)}
    return replace(quarantine, nodes=nodes)


# -- The brake, and releasing -----------------------------------------------------------------------------


def _brake(quarantine: Quarantine, request: Request) -> bool:
    """Whether one more suspicion would isolate more than the allowed share of nodes within the window."""
    if request.cluster_size < BRAKE_FROM_NODES:
        return False
    recent = {
        _machine(e.node)
        for e in quarantine.nodes.values()
        if not e.proven and request.at - e.since < request.window_s
    }
    return len(recent | {_machine(request.node)}) > BRAKE_SHARE * request.cluster_size


def _machine(name: str) -> str:
    """The node that this is, or is a device of."""
    node, _, device = name.rpartition("/")
    return node if node and device.isdecimal() else name


def release(quarantine: Quarantine, node: str) -> tuple[Quarantine, bool]:
    """Let the node be used again. Returns also whether it was isolated or held at all."""
    was_there = node in quarantine.nodes or node in quarantine.held
    nodes = {name: e for name, e in quarantine.nodes.items() if name != node}
    held = {name: e for name, e in quarantine.held.items() if name != node}
    return replace(quarantine, nodes=nodes, held=held), was_there


def changed_isolations(before: Quarantine, after: Quarantine) -> list[str]:
    """The nodes that were isolated or released between the two, or whose isolation has another reason."""
    nodes = [{e.node: e.reason for e in book.nodes.values()} for book in (before, after)]
    return sorted({node for node, _ in nodes[0].items() ^ nodes[1].items()})


def expired_nodes(quarantine: Quarantine, now: float) -> tuple[str, ...]:
    """The nodes whose time is over; a device that shows a fault is not released by time."""
    faulty = {span.report.place for span in quarantine.spans if span.ended is None}
    return tuple(
        e.node
        for e in quarantine.nodes.values()
        if e.until is not None and e.until <= now and not (e.by == COUNTS and e.node in faulty)
    )


def with_isolations_of_cluster(
    quarantine: Quarantine, isolated: Mapping[str, str], now: float
) -> Quarantine:
    """Isolate the nodes that the cluster shows as isolated, too: an isolation is never forgotten.

    Those for which there is no room stay isolated on the cluster.
    """
    nodes = dict(quarantine.nodes)
    missing = sorted(isolated.keys() - nodes.keys())
    for node in missing[: max(ENTRIES_MOST - len(nodes), 0)]:
        reason = plain_start(isolated[node] or "marked on the cluster", TEXT_MOST)
        entry = IsolatedNode(node=node, reason=reason, by="cluster", since=now)
        nodes[node] = isolations.bounded(entry)
    return replace(quarantine, nodes=nodes, held=_held_beside(nodes, quarantine.held))
