"""Faults of nodes that concern a job only once they have lasted: those that do so now, and the facts to come.

They are part of the job's state; the watch wakes when one has lasted for long enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everstep.core.facts import LASTED_S, Fact
from everstep.core.spec import JobDurationRule

LASTING_KEPT = 50


class LastingFault(NamedTuple):
    """A node that shows a code of a rule."""

    node: str
    code: str
    since: float


Lasting = tuple[LastingFault, ...]


def with_facts(
    lasting: Lasting, facts: Iterable[Fact], rules: Iterable[JobDurationRule]
) -> Lasting:
    """The lasting faults once these facts have been reported."""
    codes = {rule.code for rule in rules}
    if not codes and not lasting:
        return lasting
    for fact in sorted(facts, key=lambda fact: fact.at):
        # Over, or reported as lasting: then it is not reported again.
        if fact.kind == "device.healed" or LASTED_S in fact.details:
            lasting = tuple(fault for fault in lasting if not _is_over(fault, fact))
        elif fact.kind == "device.fault" and fact.code in codes and fact.node is not None:
            lasting = _began(lasting, LastingFault(fact.node, fact.code or "", fact.at))
    return lasting


def _is_over(fault: LastingFault, fact: Fact) -> bool:
    """Whether the fact ends this fault: it is of its node, and of its code or of none.

    The recovery of a single chip ends none: it proves nothing of the switches of the node.
    """
    is_of_node = fact.device is None or LASTED_S in fact.details
    return fault.node == fact.node and is_of_node and fact.code in (None, fault.code)


def _began(lasting: Lasting, new: LastingFault) -> Lasting:
    is_there = any((fault.node, fault.code) == (new.node, new.code) for fault in lasting)
    return lasting if is_there else (*lasting, new)[-LASTING_KEPT:]


def facts_to_come(
    lasting: Lasting, rules: Iterable[JobDurationRule], *, time_scale: float
) -> tuple[Fact, ...]:
    """For each lasting fault and its rule, the fact for the time when it will have lasted long enough."""
    facts = (
        _fact(fault, rule, fault.since + rule.longer_than_s / time_scale)
        for rule in rules
        for fault in lasting
        if fault.code == rule.code
    )
    return tuple(sorted(facts, key=lambda fact: (fact.at, fact.id)))


def _fact(fault: LastingFault, rule: JobDurationRule, at: float) -> Fact:
    return Fact(
        id=f"lasting/{fault.node}/{fault.code}/{fault.since:.3f}",
        kind="device.fault",
        at=at,
        node=fault.node,
        code=fault.code,
        message=f"shows {fault.code} for {rule.longer_than_s:g} s",
        details={"level": rule.level, LASTED_S: rule.longer_than_s},
    )
