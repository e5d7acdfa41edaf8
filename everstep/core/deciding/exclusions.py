"""Why a level cannot apply to a fault at all: ordered rows, the first that holds gives the reason.

A level that is excluded is passed over: no bill, no record. What a document rules out comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import NamedTuple

from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.naming import Diagnosis
from everstep.core.levels import ALL_STAY, KEEPING, NEEDS, SAME_CONTAINER, FaultClass, Level
from everstep.core.recovering.placement import usable


class ExclusionRow(NamedTuple):
    """Levels, when they cannot apply, and the sentence: `{inputs...}` and `{diagnosis...}` are filled in."""

    levels: frozenset[Level]
    holds: Callable[[DecisionInput, Diagnosis], bool]
    why: str


def _sizes_left(inputs: DecisionInput, diagnosis: Diagnosis) -> tuple[int, ...]:
    """The numbers of nodes that are not known to be bad."""
    new_bad = () if diagnosis.bad_size is None else (diagnosis.bad_size,)
    return usable(inputs.nodes_min, inputs.nodes, bad=(*inputs.bad_sizes, *new_bad))


def _has_gone_back_enough(inputs: DecisionInput, diagnosis: Diagnosis) -> bool:
    """Whether the job went back as often in a row as it may.

    Not counted again: a bad checkpoint, which cannot be used, and a rollback that is repeated.
    """
    most, incident = inputs.policy.rollbacks, inputs.incident
    is_counted = incident is not None and incident.decision.level is Level.ROLLBACK
    is_free = diagnosis.fault.cls is FaultClass.CHECKPOINT or is_counted
    return most is not None and inputs.rollbacks.times >= most and not is_free


def _ends_all(inputs: DecisionInput) -> bool:
    """Whether the level before in this incident ended every process."""
    return inputs.incident is not None and inputs.incident.decision.level not in KEEPING


ENDS_A_PROCESS = frozenset({FaultClass.CRASH, FaultClass.HANG, FaultClass.NODE})
"""Classes of faults after which not every process can go on."""


def _rows_of_needs(level: Level, needs: frozenset[str]) -> Iterator[ExclusionRow]:
    """A row for each set of capabilities that may be missing, large ones first."""
    for size in range(len(needs), 0, -1):
        for missing in combinations(sorted(needs), size):
            why = f"not every rank declares {' and '.join(missing)}"
            yield ExclusionRow(frozenset({level}), partial(_lacks, frozenset(missing)), why)


def _lacks(missing: frozenset[str], inputs: DecisionInput, _diagnosis: Diagnosis) -> bool:
    return missing.isdisjoint(inputs.can)


ROWS: tuple[ExclusionRow, ...] = (
    ExclusionRow(
        KEEPING, lambda inputs, _: not inputs.can, "needs the train library in every rank"
    ),
    *(row for level, needs in NEEDS.items() for row in _rows_of_needs(level, needs)),
    ExclusionRow(
        KEEPING,
        lambda inputs, _: _ends_all(inputs),
        "{inputs.incident.decision.level} has ended the processes",
    ),
    ExclusionRow(
        frozenset({Level.PROCESS}),
        lambda inputs, _: len(inputs.active) * inputs.processes_per_node < 2,
        "there is no other rank that could keep its process",
    ),
    ExclusionRow(
        ALL_STAY,
        lambda _, diagnosis: diagnosis.fault.cls in ENDS_A_PROCESS,
        "a process has ended, or has to be",
    ),
    ExclusionRow(
        frozenset({Level.ROLLBACK}),
        _has_gone_back_enough,
        "without progress it may go back {inputs.policy.rollbacks} times in a row (recovery.rollbacks)",
    ),
    ExclusionRow(
        SAME_CONTAINER,
        lambda inputs, _: bool(inputs.lost_containers),
        "the container of slot {inputs.lost_containers[0]} is gone",
    ),
    ExclusionRow(
        SAME_CONTAINER | ALL_STAY,
        lambda _, diagnosis: bool(diagnosis.other_faults),
        "{diagnosis.other_faults[0].where} is broken and has to be left",
    ),
    ExclusionRow(
        frozenset({Level.ELASTIC}),
        lambda inputs, _: inputs.nodes_min == inputs.nodes,
        "the document asks for a fixed number of nodes",
    ),
    ExclusionRow(
        frozenset({Level.ELASTIC}),
        lambda inputs, diagnosis: not _sizes_left(inputs, diagnosis),
        "every number of nodes from {inputs.nodes_min} to {inputs.nodes} is known not to work",
    ),
)


def exclusion(inputs: DecisionInput, diagnosis: Diagnosis, level: Level) -> str | None:
    """Why this level cannot apply at all, if so."""
    for row in ROWS:
        if level in row.levels and row.holds(inputs, diagnosis):
            return row.why.format(inputs=inputs, diagnosis=diagnosis)
    for ruled_out in inputs.policy.exclusions:
        is_spared = diagnosis.fault.cls in ruled_out.spares
        applies = not ruled_out.under_rank0 or _is_under_rank0(inputs, diagnosis)
        if level in ruled_out.levels and applies and not is_spared:
            return ruled_out.why
    return None


def _is_under_rank0(inputs: DecisionInput, diagnosis: Diagnosis) -> bool:
    lowest = min(inputs.active, default=0)
    node = inputs.nodes_by_slot.get(lowest)
    faults = (diagnosis.fault, *diagnosis.other_faults)
    return any(fault.slot == lowest or (node and node in fault.nodes) for fault in faults)
