"""Why a level cannot apply to a fault at all: ordered rows, the first that holds says it.

A level that is hindered is passed over: no bill, no record. What a document rules out comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from everstep.core.deciding.decision import Fault
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.naming import Named
from everstep.core.levels import NEEDS, ONLINE_LEVELS, SAME_CONTAINER, STEPS, FaultClass, Level
from everstep.core.recovering.placement import usable


class HindranceRow(NamedTuple):
    """Levels, when they cannot apply, and the sentence, in which names in braces are filled in."""

    levels: frozenset[Level]
    holds: Callable[[DecisionInput, Named], bool]
    why: str


def _sizes_left(given: DecisionInput, named: Named) -> tuple[int, ...]:
    new = () if named.bad_size is None else (named.bad_size,)
    return usable(given.nodes_min, given.nodes, bad=(*given.bad_sizes, *new))


def _has_gone_back_enough(given: DecisionInput, named: Named) -> bool:
    """A checkpoint that is known to be bad has to be left; one that is tried again was counted."""
    most, incident = given.policy.rollbacks, given.incident
    is_counted = incident is not None and incident.decision.level is Level.ROLLBACK
    is_free = named.fault.cls is FaultClass.CHECKPOINT or is_counted
    return most is not None and given.back.times >= most and not is_free


def _row_of_needs(level: Level, needs: frozenset[str]) -> HindranceRow:
    why = f"needs every rank to say that it can do this: {', '.join(sorted(needs))}"
    return HindranceRow(frozenset({level}), lambda given, _: not needs <= {*given.can}, why)


ROWS: tuple[HindranceRow, ...] = (
    HindranceRow(
        ONLINE_LEVELS, lambda given, _: not given.can, "needs the train library in every rank"
    ),
    *(_row_of_needs(level, needs) for level, needs in NEEDS.items()),
    HindranceRow(
        frozenset(level for level in ONLINE_LEVELS if not STEPS[level]),
        lambda *_: True,
        "has no steps yet",
    ),
    HindranceRow(
        frozenset({Level.ROLLBACK}),
        _has_gone_back_enough,
        "without progress it may go back {given.policy.rollbacks} times in a row (recovery.rollbacks)",
    ),
    HindranceRow(
        SAME_CONTAINER,
        lambda given, _: bool(given.gone),
        "the container of slot {given.gone[0]} is gone",
    ),
    HindranceRow(
        SAME_CONTAINER,
        lambda _, named: bool(named.beside),
        "{named.beside[0].where} is broken and has to be left",
    ),
    HindranceRow(
        frozenset({Level.ELASTIC}),
        lambda given, _: given.nodes_min == given.nodes,
        "the document asks for a fixed number of nodes",
    ),
    HindranceRow(
        frozenset({Level.ELASTIC}),
        lambda given, named: not _sizes_left(given, named),
        "every number of nodes from {given.nodes_min} to {given.nodes} is known not to work",
    ),
)


def hindrance(given: DecisionInput, named: Named, level: Level) -> str | None:
    """Why this level cannot apply at all, if so."""
    for row in ROWS:
        if level in row.levels and row.holds(given, named):
            return row.why.format(given=given, named=named)
    for ruled_out in given.policy.hindrances:
        applies = not ruled_out.under_rank0 or _is_under_rank0(given, named.fault)
        if level in ruled_out.levels and applies:
            return ruled_out.why
    return None


def _is_under_rank0(given: DecisionInput, fault: Fault) -> bool:
    lowest = min(given.living, default=0)
    node = given.homes.get(lowest)
    return fault.slot == lowest or (node is not None and node in fault.nodes)
