"""Faults of nodes whose observer lists all that are there: which occurrence each is, which are over. Pure.

A list may give a fault the same identity each time that it comes back. The record of a job has the number
of ends of each, and so the next occurrence has the same identity for every worker, after every restart.
A worker may have an older list than another one. So lists have versions, and an older one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from everstep.core.facts import LIST_VERSION, Fact, ObserverReport

ENDS_KEPT = 200
"""The number of ends that a job's record keeps, the newest."""


class FaultList(NamedTuple):
    """All faults of a node, as its observer listed them last."""

    version: int
    ids: frozenset[str]


class FaultEnds(NamedTuple):
    """How often a fault ended, when it ended last, and the version of the list that lacked it then."""

    times: int
    version: int
    at: float


EndsOfFaults = Mapping[str, FaultEnds]
"""By the identity that the lists give each fault."""


class Ended(NamedTuple):
    """A fault that a newer list lacks."""

    listed_id: str
    ends: FaultEnds
    fact: Fact | None  # that it is over; None for a fault without a code, which it could not name


def with_version(report: ObserverReport, version: int) -> ObserverReport:
    """The report with the version of its object in each fact; unchanged if it is no list."""
    if report.lists_all_of is None:
        return report
    facts = (
        replace(fact, details={**fact.details, LIST_VERSION: version}) for fact in report.facts
    )
    return report._replace(facts=tuple(facts))


def occurrences(facts: Iterable[Fact], ends: EndsOfFaults) -> Iterator[Fact]:
    """The facts with the identities of their occurrences, without those of lists from before their end.

    An occurrence begins when the one before it ended, or later, whatever time its observer gives.
    """
    for fact in facts:
        end = ends.get(fact.id)
        if end is None:
            yield fact
        elif _version(fact) > end.version:
            occurrence_id = _occurrence_id(fact.id, end.times)
            yield replace(fact, id=occurrence_id, at=max(fact.at, end.at))


def ended(
    recorded: Iterable[Fact], lists: Mapping[str, FaultList], ends: EndsOfFaults, *, now: float
) -> Iterator[Ended]:
    """The recorded faults that are over by newer lists of their nodes."""
    for fact in recorded:
        version = _version(fact)
        newest = lists.get(fact.node or "")
        if not version or newest is None or newest.version <= version:
            continue
        listed_id = _listed_id(fact.id)
        times = ends[listed_id].times if listed_id in ends else 0
        if listed_id not in newest.ids and fact.id == _occurrence_id(listed_id, times):
            end = FaultEnds(times + 1, newest.version, max(now, fact.at))
            yield Ended(listed_id, end, _end_of(fact, end.at))


def with_end(ends: EndsOfFaults, end: Ended) -> EndsOfFaults:
    """The ends with this one; the same if another worker noted it."""
    if end.listed_id in ends and ends[end.listed_id].times >= end.ends.times:
        return ends
    older = {listed_id: each for listed_id, each in ends.items() if listed_id != end.listed_id}
    newest = [*older.items(), (end.listed_id, end.ends)][-ENDS_KEPT:]
    return dict(newest)


def _end_of(fact: Fact, at: float) -> Fact | None:
    if fact.code is None:
        return None
    return Fact(
        id=f"{fact.id}/over",
        kind="device.healed",
        at=at,
        node=fact.node,
        device=fact.device,
        code=fact.code,
        message=f"{fact.code} is over on {fact.where}, its observer reports",
    )


def _version(fact: Fact) -> int:
    version = fact.details.get(LIST_VERSION, 0)
    return version if isinstance(version, int) else 0


def _occurrence_id(listed_id: str, ends: int) -> str:
    return f"{listed_id}#{ends}" if ends else listed_id


def _listed_id(fact_id: str) -> str:
    before, mark, number = fact_id.rpartition("#")
    return before if mark and number.isdecimal() else fact_id
