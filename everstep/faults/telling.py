"""Device facts with what the catalogue knows of their code. What the reporter says wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.playbook import row_for
from everstep.core.facts import Detail, Fact
from everstep.core.levels import FaultClass
from everstep.faults.catalogue import CodeEntry, look_up
from everstep.faults.levels import LEVELS, SEVERITY_WORDS, heals_by

DEVICE_FAULT = "device.fault"


def with_meaning(fact: Fact) -> Fact:
    """The fact with the details it lacks; any other fact as it is. Twice is the same as once."""
    if fact.kind != DEVICE_FAULT or not fact.code:
        return fact
    said = {key: value for key, value in fact.details.items() if value is not None}
    word = said.get("severity")
    if isinstance(word, str):
        said["severity"] = SEVERITY_WORDS.get(word.lower(), word)
    known = _known(look_up(fact.code), said)
    return replace(fact, details={**known, **said})


def _known(entry: CodeEntry, said: Mapping[str, Detail]) -> Mapping[str, Detail]:
    """What the catalogue adds: never against what the reporter says, nor against what follows from it."""
    known = dict(_graded(entry, said.get("level")))
    severity, heals = said.get("severity"), said.get("heals")
    if severity is not None or heals is not None:
        known.pop("sub_healthy", None)
        known.pop("level", None)
    if severity is not None:
        known["heals"] = heals_by(str(severity))
    elif heals is True and not heals_by(str(known["severity"])):
        known["severity"] = "major"
    return known


def _graded(entry: CodeEntry, level: Detail) -> Mapping[str, Detail]:
    """The entry's details; a cluster that gives the code another level of MindCluster's knows better."""
    if level not in LEVELS:
        return entry.details
    grade = LEVELS[str(level)]
    return replace(entry, level=str(level), severity=grade.severity, heals=grade.heals).details


def informed(given: DecisionInput) -> DecisionInput:
    """The input with the meaning of every fact: asked where the answer becomes part of the history.

    Facts of a backend have theirs already; those that an operator reports come from workflow code, which
    must not depend on data that may change.
    """
    cause = None if given.cause is None else with_meaning(given.cause)
    return replace(given, facts=tuple(with_meaning(fact) for fact in given.facts), cause=cause)


def fault_class(entry: CodeEntry) -> FaultClass:
    """The class of a device fault with this code, as the playbook says."""
    fact = Fact(id="", kind=DEVICE_FAULT, at=0.0, code=entry.code, details=entry.details)
    return row_for(fact).cls
