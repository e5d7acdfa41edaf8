"""Runs that end alike though each began anew: what they began with may be the cause, and is left behind once.

Only a checkpoint can be that. Where none is older, or the job went back as often as it may, it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from everstep.core.deciding.decision import RunEnd
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.hindrances import hindrance
from everstep.core.deciding.naming import Named
from everstep.core.deciding.run_ends import run_end
from everstep.core.levels import FaultClass, Level

ALIKE_TIMES = 2
OF_A_RUN = frozenset({FaultClass.CRASH, FaultClass.UNKNOWN})
"""Classes that say no more than that a run ended."""


class Row(NamedTuple):
    """When it holds, and what is said of the checkpoint then; `leaves`: an older one is resumed from."""

    holds: Callable[[DecisionInput, Named], bool]
    why: str
    leaves: bool = False


ROWS: tuple[Row, ...] = (
    Row(
        lambda given, _: given.saved is None or given.saved.counts is None,
        "nothing tells which one is older: it stays",
    ),
    Row(
        lambda given, named: hindrance(given, named, Level.ROLLBACK) is not None,
        "it stays, for {hindered}",
    ),
    Row(lambda *_: True, "it is set aside, if an older one is there", leaves=True),
)
"""The first that holds."""


def with_suspicion(given: DecisionInput, named: Named) -> Named:
    """What was named, with the checkpoint of its run left behind before anything else is tried."""
    end = run_end(given, named.facts)
    if end is None or given.resume is None or not _is_suspicious(given, named, end):
        return named
    row = next(row for row in ROWS if row.holds(given, named))
    why = row.why.format(hindered=hindrance(given, named, Level.ROLLBACK))
    what = f"{end.exception.partition(':')[0]} {end.where} twice in a row"
    remark = f"{what}: checkpoint {given.resume.name} is suspected; {why}"
    ladder = (Level.ROLLBACK, *named.ladder) if row.leaves else named.ladder
    return replace(named, ladder=ladder, leaves=row.leaves, remarks=(*named.remarks, remark))


def _is_suspicious(given: DecisionInput, named: Named, end: RunEnd) -> bool:
    is_alike = bool(end.exception) and end.times == ALIKE_TIMES
    is_open = given.incident is None and not named.is_fixed
    return (
        is_alike and is_open and given.policy.suspects_checkpoints and named.fault.cls in OF_A_RUN
    )
