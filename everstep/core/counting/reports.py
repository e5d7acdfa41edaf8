"""What a job reports of devices: made from its facts, and read by the quarantine of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.core.bounds import NAME_MOST, checked_seconds, quoted
from everstep.core.counting.occurrences import SHARED_WITHIN_S, Occurrence
from everstep.core.errors import CommandRejected
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass
from everstep.core.node_names import check_place
from everstep.core.spec import DurationRule, JobSpec, Policy, RepeatRule

REPORT_MOST = 200
"""Faults in one update."""

DEVICE_FAULT, DEVICE_SOUND = "device.fault", "device.healed"
COUNTED = frozenset({FaultClass.DEVICE, FaultClass.DEVICE_USER, FaultClass.DEVICE_FATAL})


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
class SoundReport:
    """A device that shows no fault any more, as a job reports it."""

    node: str
    device: int
    at: float
    code: str | None = None  # None: it shows none of its codes any more

    @property
    def place(self) -> str:
        return f"{self.node}/{self.device}"


# -- Making ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOrder:
    """The device faults that a job is about to answer, and the rules of its document."""

    cluster: str
    job: str
    facts: tuple[Fact, ...]
    repeats: tuple[RepeatRule, ...]
    durations: tuple[DurationRule, ...] = ()
    time_scale: float = 1.0


def count_order(
    policy: Policy, facts: Iterable[Fact], earlier: Iterable[Occurrence], *, spec: JobSpec, job: str
) -> CountOrder | None:
    """Return what is to be counted before a decision about these facts, or None if nothing is.

    Earlier faults of the job go along: one that the quarantine missed is counted then, and none twice.
    """
    new = tuple(fact for fact in facts if fact.kind in (DEVICE_FAULT, DEVICE_SOUND))
    if not policy.counts_over_jobs or not new:
        return None
    lasting = {rule.code for rule in policy.durations}  # these are reported as they come
    to_count = (*(_fact(one) for one in earlier if one.code not in lasting), *new)
    return CountOrder(
        cluster=spec.cluster,
        job=job,
        facts=to_count[-REPORT_MOST:],
        repeats=policy.repeats,
        durations=policy.durations,
        time_scale=spec.time_scale,
    )


def _fact(occurrence: Occurrence) -> Fact:
    return Fact(
        id="",
        kind=DEVICE_FAULT,
        at=occurrence.at,
        node=occurrence.node,
        device=occurrence.device,
        code=occurrence.code,
    )


def sound_of(order: CountOrder) -> Iterator[SoundReport]:
    """The devices that are sound again, where a rule looks at how long they were not."""
    for fact in order.facts if order.durations else ():
        if fact.kind == DEVICE_SOUND and fact.node is not None and fact.device is not None:
            yield SoundReport(node=fact.node, device=fact.device, at=fact.at, code=fact.code)


def reports_of(order: CountOrder, class_of: Callable[[Fact], FaultClass]) -> Iterator[FaultReport]:
    """The faults that a rule of the document counts. Their facts have their meanings."""
    for fact in order.facts:
        if fact.kind != DEVICE_FAULT or fact.node is None or fact.device is None or not fact.code:
            continue
        rule = next((r for r in order.repeats if not r.codes or fact.code in r.codes), None)
        long = next((rule for rule in order.durations if rule.code == fact.code), None)
        cls = class_of(fact)
        if rule is None or (cls not in COUNTED and long is None):
            continue
        yield FaultReport(
            node=fact.node,
            device=fact.device,
            code=fact.code,
            at=fact.at,
            job=order.job,
            times=rule.times,
            window_s=rule.window_s / order.time_scale,
            release_s=None if rule.release_s is None else rule.release_s / order.time_scale,
            shared_s=SHARED_WITHIN_S / order.time_scale,
            isolates=cls is not FaultClass.DEVICE_USER,
            longer_than_s=None if long is None else long.longer_than_s / order.time_scale,
            sound_for_s=0.0 if long is None else long.sound_for_s / order.time_scale,
        )


# -- Reading ----------------------------------------------------------------------------------------


def reports_from(raw: object) -> tuple[FaultReport, ...]:
    """The faults of an update, a JSON object {faults, now, cluster_size}; a sentence if it is none."""
    faults = raw.get("faults") if isinstance(raw, Mapping) else None
    if not isinstance(faults, list) or len(faults) > REPORT_MOST:
        raise CommandRejected(f"note_faults takes {{faults}}: a list of at most {REPORT_MOST}")
    return tuple(_report(one, f"faults[{n}]") for n, one in enumerate(faults))


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
