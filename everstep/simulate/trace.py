"""Outages that really happened as mishaps of a simulation: a list of them, or a report of one's own jobs.

A list has a line for each outage: `node,start_day,end_day,level,class,description`. Which nodes were out and
when is as it was; what no list has (how a job notices, what a restart cures, hangs, scripts, false alarms)
is drawn from the profile.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from everstep.simulate.fault_classes import DAY_S, Effect, FaultClassRow, Profile, row_named
from everstep.simulate.mishaps import OF_JOBS, Mishap, drawn, on_node

COLUMNS = ("node", "start_day", "end_day", "level", "class", "description")


class BadTrace(ValueError):
    """The file is no trace; the message says which line and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which a node was out of service. `node` counts from 0."""

    node: int
    start_day: float
    end_day: float
    fault_class: str  # of `fault_classes.ROWS`


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All outages of a cluster."""

    name: str
    outages: tuple[Outage, ...]

    @property
    def nodes(self) -> int:
        return max((outage.node for outage in self.outages), default=-1) + 1

    @property
    def days(self) -> float:
        return max((outage.start_day for outage in self.outages), default=0.0)

    def between(self, first: float, last: float) -> Trace:
        """The outages that begin between these days, which count from the first of them."""
        chosen = tuple(
            replace(o, start_day=o.start_day - first, end_day=o.end_day - first)
            for o in self.outages
            if first <= o.start_day < last
        )
        return replace(self, outages=chosen)


class ClassRow(NamedTuple):
    """Words of a trace, in any case, and the class that such an outage has here; `skip`: it is none."""

    words: tuple[str, ...]
    fault_class: str | None
    why: str


CLASS_ROWS: tuple[ClassRow, ...] = (
    ClassRow(("silent data",), "sdc", "it computes wrong numbers"),
    ClassRow(("stress test",), None, "an operator tested it: nothing ran there"),
    ClassRow(("change", "temporarily offline"), "maintenance", "planned by an operator"),
    ClassRow(("link down", "cable", "gid", "network"), "net_flap", "a link, not the machine"),
    ClassRow(
        ("sbe", "p2p bandwidth", "temperature", "xid"), "node_selfheal_hw", "a reset may help"
    ),
    ClassRow(("link width low", "speed low"), "slow_node", "it works, but slower"),
    ClassRow(
        ("kernel", "system crash", "kubelet", "file system", "software", "os"),
        "host_os",
        "the system of the machine",
    ),
    ClassRow(("hang", "suspect"), "node_fatal_hw", "suspected by an operator, and taken out"),
    ClassRow(("maintenance", "drain"), "maintenance", "planned by an operator"),
    ClassRow(("",), "node_fatal_hw", "everything else takes the machine out"),
)
"""The first row with a word in the class, the description or the level of an outage."""


def class_of(text: str) -> str | None:
    lower = text.lower()
    return next(row.fault_class for row in CLASS_ROWS if any(word in lower for word in row.words))


def read_trace(path: Path) -> Trace:
    """Read a list of outages (CSV), or the JSON that `everstep report --since 90d --json` prints."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.lstrip().startswith("{"):
        return Trace(name=path.name, outages=tuple(_of_report(text, path.name)))
    return Trace(name=path.name, outages=tuple(_of_list(text, path.name)))


def _of_list(text: str, name: str) -> Iterable[Outage]:
    rows = csv.DictReader(text.splitlines())
    missing = [column for column in COLUMNS[:3] if column not in (rows.fieldnames or ())]
    if missing:
        raise BadTrace(
            f"{name}: the first line has no column {missing[0]}; a trace has {', '.join(COLUMNS)}"
        )
    for number, row in enumerate(rows, start=2):
        fault_class = class_of(
            " ".join(row.get(c) or "" for c in ("class", "description", "level"))
        )
        if fault_class is None:
            continue
        outage: Outage | None
        try:
            outage = Outage(
                node=int(row["node"]),
                start_day=float(row["start_day"]),
                end_day=float(row["end_day"]),
                fault_class=fault_class,
            )
        except (TypeError, ValueError):
            outage = None
        if outage is None or not isfinite(outage.start_day + outage.end_day):
            raise BadTrace(
                f"{name}, line {number}: node is a whole number, start_day and end_day are days"
            )
        if outage.node < 0 or not 0 <= outage.start_day <= outage.end_day:
            raise BadTrace(f"{name}, line {number}: it ends before it begins, or before day 0")
        yield outage


# -- one's own jobs -----------------------------------------------------------------------------

CLASS_OF_RESTART: Mapping[str, str] = {
    "device": "node_selfheal_hw",
    "device_fatal": "node_fatal_hw",
    "node": "host_os",
    "network": "net_flap",
    "maintenance": "maintenance",
    "precheck": "node_fatal_hw",
    "numeric": "sdc",
}
"""The class here of restarts whose cause lies in a node. Others (crash, hang, user) are drawn."""
UNKNOWN_REPAIR_DAYS = 1.0
"""A report has no time of a repair."""


def _of_report(text: str, name: str) -> Iterable[Outage]:
    try:
        report = json.loads(text)
    except ValueError as error:
        raise BadTrace(f"{name}: {error}") from None
    faults = report.get("faults") if isinstance(report, Mapping) else None
    if not isinstance(faults, Sequence) or isinstance(faults, str):
        raise BadTrace(
            f"{name}: no list of faults in it; make it by `everstep report --since 90d --json`"
        )
    begin = _seconds(report.get("since"), name)
    numbers: dict[str, int] = {}
    for fault in faults:
        if not isinstance(fault, Mapping):
            raise BadTrace(f"{name}: {fault!r} is no fault")
        fault_class = CLASS_OF_RESTART.get(str(fault.get("class")))
        node = fault.get("node")
        if fault_class is None or not isinstance(node, str):
            continue
        start_day = max((_seconds(fault.get("at"), name) - begin) / DAY_S, 0.0)
        yield Outage(
            node=numbers.setdefault(node, len(numbers)),
            start_day=start_day,
            end_day=start_day + UNKNOWN_REPAIR_DAYS,
            fault_class=fault_class,
        )


def _seconds(at: Any, name: str) -> float:
    try:
        return datetime.fromisoformat(str(at)).timestamp()
    except ValueError:
        raise BadTrace(f"{name}: {at!r} is no time") from None


# -- mishaps ----------------------------------------------------------------------------------


def mishaps_of(
    trace: Trace, *, profile: Profile, nodes: int, days: float, seed: int
) -> tuple[Mishap, ...]:
    """The outages, and what a list has not: hangs, faults of scripts and false alarms of the profile."""
    chance = Random(f"{seed}/trace")  # no secret
    places = list(range(nodes))
    chance.shuffle(places)  # which server of the trace is which node: another one for each seed
    outages = [
        _mishap(outage, places, chance, nodes)
        for outage in trace.outages
        if outage.start_day < days and outage.node < nodes
    ]
    missing = replace(profile, rows=tuple(row for row in profile.rows if _is_missing(row)))
    return tuple(
        sorted(
            (*outages, *drawn(missing, nodes=nodes, days=days, seed=seed)),
            key=lambda one: (one.at_s, one.name),
        )
    )


def _is_missing(row: FaultClassRow) -> bool:
    return row.effect in OF_JOBS or row.effect is Effect.SWITCH


def _mishap(outage: Outage, places: Sequence[int], chance: Random, nodes: int) -> Mishap:
    return on_node(
        row_named(outage.fault_class),
        outage.start_day * DAY_S,
        places[outage.node],
        chance,
        nodes=nodes,
        sound_s=(outage.end_day - outage.start_day) * DAY_S,
    )
