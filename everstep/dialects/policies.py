"""Ladders that the dialects of other systems share, and the policy that switches native rules off.

Each dialect starts from these tables and replaces what its document configures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everstep.core.levels import FaultClass, Level
from everstep.core.spec import ALL_OWNERS, Policy

LevelRows = tuple[Level, ...]

_C, _L = FaultClass, Level

NOTE: LevelRows = (_L.NOTE,)
FAIL: LevelRows = (_L.FAIL,)
JOB: LevelRows = (_L.JOB,)

SHARED_LADDERS: Mapping[FaultClass, LevelRows] = {
    _C.UNREACHABLE: NOTE,
    _C.PREEMPTED: JOB,
    _C.MAINTENANCE: JOB,
    _C.PLANNED: JOB,
    _C.CHECKPOINT: (_L.ROLLBACK,),
    _C.STORAGE: (_L.IN_PLACE,),
}
"""Default ladders shared by all dialects."""

NO_FAULT: Mapping[FaultClass, LevelRows] = {
    **{
        cls: SHARED_LADDERS[cls]
        for cls in (_C.UNREACHABLE, _C.PREEMPTED, _C.MAINTENANCE, _C.PLANNED)
    },
    _C.SUBHEALTH: NOTE,
    _C.SLOW: NOTE,
}
"""Ladders of classes in which nothing of the job failed. They hold without fault tolerance too."""


def levels_on(*levels: tuple[Level, bool]) -> LevelRows:
    """The levels that are switched on, in their order."""
    return tuple(level for level, on in levels if on)


def same_for(classes: Iterable[FaultClass], answer: LevelRows) -> dict[FaultClass, LevelRows]:
    return dict.fromkeys(classes, answer)


LIKE_A_CRASH = (_C.CRASH, _C.NUMERIC, _C.UNKNOWN)
ENDS_TRAINING = (*LIKE_A_CRASH, _C.NODE, _C.CHECKPOINT, _C.STORAGE, _C.PRECHECK)
"""Classes after which training does not go on by itself."""


def without_tolerance(answer: LevelRows) -> dict[FaultClass, LevelRows]:
    """Ladders without fault tolerance: faults that ended nothing are noted, the rest get this answer."""
    return {**same_for(FaultClass, NOTE), **NO_FAULT, **same_for(ENDS_TRAINING, answer)}


BASE_POLICY = Policy(
    ladders=(),
    no_progress_restarts=None,
    no_progress_owners=ALL_OWNERS,
    rollbacks=None,
    suspects_checkpoints=False,
    escalates=False,
    spaced=False,
)
"""Policy without the rules that only native documents have: limits, escalation, spacing, suspicion."""
