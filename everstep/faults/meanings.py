"""Add to device facts what the catalogue says of their code.

Which detail wins: what the report has, then what follows from the report's severity, then the cluster's own
level of the code, then the catalogue. One exception: the severity of an Ascend code in no list is replaced.
MindCluster ignores such a code if it is minor, and takes the device out of service if it is major.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from everstep.core.deciding.playbook import row_for
from everstep.core.facts import Detail, Fact
from everstep.core.levels import FaultClass, Owner
from everstep.faults.catalogue import CodeEntry, look_up, without_what_varies
from everstep.faults.severities import LEVELS, SEVERITIES, SEVERITY_WORDS, heals_by

if TYPE_CHECKING:  # the state of a job comes with it, which no document needs
    from everstep.core.deciding.decision_input import DecisionInput

DEVICE_FAULT = "device.fault"


def with_meaning(fact: Fact) -> Fact:
    """The fact with the details it lacks; any other fact as it is. Twice is the same as once.

    A line of a log becomes the code that all lines of its fault have, so that repeats of it count.
    """
    if fact.kind != DEVICE_FAULT or not fact.code:
        return fact
    code = without_what_varies(fact.code)
    if code != fact.code:
        fact = replace(fact, code=code, details={**fact.details, "line": fact.code})
    reported = {key: value for key, value in fact.details.items() if value is not None}
    severity = reported.get("severity")
    if isinstance(severity, str):
        reported["severity"] = severity = SEVERITY_WORDS.get(severity.lower(), severity)
    entry = look_up(code, str(severity))
    # A code in no list: its rule was chosen by the reported severity, and has the severity that counts.
    is_graded = severity in SEVERITIES and entry.is_graded_by_report and "heals" not in reported
    if is_graded and reported.get("level") not in LEVELS:
        reported["severity"] = entry.severity
    details = _details_to_add(entry, reported, keeps_level=is_graded)
    return replace(fact, details={**details, **reported})


def _details_to_add(
    entry: CodeEntry, reported: Mapping[str, Detail], *, keeps_level: bool
) -> Mapping[str, Detail]:
    """The details of the code that do not contradict the report or what follows from it.

    A severity or `heals` in the report overrides the catalogue: its level is left out, unless `look_up` chose
    the level by that severity (`keeps_level`).
    """
    details = dict(_details_at_level(entry, reported.get("level")))
    severity, heals = reported.get("severity"), reported.get("heals")
    if severity is not None or heals is not None:
        details.pop("sub_healthy", None)
        if not keeps_level:
            details.pop("level", None)
    if severity is not None:
        details["heals"] = heals_by(str(severity))
    elif heals is True and not heals_by(str(details["severity"])):
        details["severity"] = "major"
    return details


def _details_at_level(entry: CodeEntry, level: Detail) -> Mapping[str, Detail]:
    """The entry's details, by the level that the cluster reports if that is one of MindCluster's.

    A device that the cluster takes out of service is faulty, whatever caused its code.
    """
    if level not in LEVELS:
        return entry.details
    grade = LEVELS[str(level)]
    owner = Owner.INFRA if grade.severity == "critical" else entry.owner
    return replace(
        entry, level=str(level), severity=grade.severity, heals=grade.heals, owner=owner
    ).details


def informed(decision_input: DecisionInput) -> DecisionInput:
    """The input with the meaning of every fact: looked up where the answer becomes part of the history.

    Facts of a backend have theirs already; those that an operator reports come from workflow code, which
    must not depend on data that may change.
    """
    failure = decision_input.step_failure
    return replace(
        decision_input,
        facts=tuple(with_meaning(fact) for fact in decision_input.facts),
        step_failure=None if failure is None else with_meaning(failure),
    )


def fault_class(entry: CodeEntry) -> FaultClass:
    """The class of a device fault with this code, as the playbook says."""
    fact = Fact(id="", kind=DEVICE_FAULT, at=0.0, code=entry.code, details=entry.details)
    return row_for(fact).cls
