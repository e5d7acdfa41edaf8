"""Budgets: which ones a level bills, whether they have a unit left, and what comes back afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everstep.core.levels import NEVER_BILLED, FaultClass, Level, Owner
from everstep.core.spec import Budget, Series


def limit_of(budget: Budget, overrides: Mapping[str, int | None]) -> int | None:
    """The limit in force: an operator's word counts more than the document's."""
    return overrides.get(budget.name, budget.limit)


def matching(
    budgets: Iterable[Budget], *, level: Level, owner: Owner, cls: FaultClass
) -> tuple[Budget, ...]:
    """Every budget that this level of this fault bills; preemption, service and plans bill none."""
    if cls in NEVER_BILLED:
        return ()
    return tuple(
        b for b in budgets if level in b.levels and owner in b.owners and cls not in b.free
    )


def exhausted(
    budgets: Iterable[Budget], used: Mapping[str, int], overrides: Mapping[str, int | None]
) -> Budget | None:
    """The first of these budgets that has no unit left; a reserved unit counts as used."""
    for budget in budgets:
        limit = limit_of(budget, overrides)
        if limit is not None and used.get(budget.name, 0) >= limit:
            return budget
    return None


def charge(used: Mapping[str, int], bills: Mapping[str, int]) -> dict[str, int]:
    return {**used, **{name: used.get(name, 0) + units for name, units in bills.items()}}


def refunds(
    budgets: Iterable[Budget], bills: Mapping[str, int], *, succeeded: bool
) -> dict[str, int]:
    """What of these bills comes back: budgets that count successes keep nothing else."""
    if succeeded:
        return {}
    back = {b.name for b in budgets if b.when == "succeeded"}
    return {name: units for name, units in bills.items() if name in back}


def refund(used: Mapping[str, int], back: Mapping[str, int]) -> dict[str, int]:
    return {**used, **{name: used.get(name, 0) - units for name, units in back.items()}}


def in_series(series: Iterable[Series], *, level: Level, owner: Owner) -> tuple[Series, ...]:
    """The series that a restart of this level and owner belongs to."""
    return tuple(s for s in series if level in s.levels and owner in s.owners)
