"""Codes that are harmless by themselves and grave soon after another one, their cause."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from everstep.core.counting.occurrences import Occurrence
from everstep.core.spec import RelationRule


def causes_of(rules: Iterable[RelationRule], codes: Container[str]) -> set[str]:
    """The codes that would make one of these grave."""
    return {rule.cause for rule in rules if rule.trigger in codes}


def first_relation(
    rules: Iterable[RelationRule],
    codes: Container[str],
    occurrences: Sequence[Occurrence],
    *,
    now: float,
    time_scale: float,
) -> tuple[RelationRule, Occurrence] | None:
    """The first rule by which one of these codes follows its cause, and the newest occurrence of that."""
    for rule in rules:
        since = now - rule.window_s / time_scale
        causes = [o for o in occurrences if o.code == rule.cause and o.at >= since]
        if rule.trigger in codes and causes:
            return rule, causes[-1]
    return None
