"""What the policies of other systems have in common: answers that are alike, and ours switched off.

Each dialect starts from a table of all classes and replaces what its document switched on.
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

ALIKE: Mapping[FaultClass, LevelRows] = {
    _C.UNREACHABLE: NOTE,
    _C.PREEMPTED: JOB,
    _C.MAINTENANCE: JOB,
    _C.PLANNED: JOB,
    _C.CHECKPOINT: (_L.ROLLBACK,),
    _C.STORAGE: (_L.IN_PLACE,),
}
"""What every system answers alike."""

NO_FAULT: Mapping[FaultClass, LevelRows] = {
    **{cls: ALIKE[cls] for cls in (_C.UNREACHABLE, _C.PREEMPTED, _C.MAINTENANCE, _C.PLANNED)},
    _C.SUBHEALTH: NOTE,
    _C.SLOW: NOTE,
}
"""Nothing of the job failed: answered as ever, also where a document wants no fault tolerance."""


def chosen(*levels: tuple[Level, bool]) -> LevelRows:
    """The levels that are switched on, in their order."""
    return tuple(level for level, on in levels if on)


def like(answer: LevelRows, classes: Iterable[FaultClass]) -> dict[FaultClass, LevelRows]:
    return dict.fromkeys(classes, answer)


LIKE_A_CRASH = (_C.CRASH, _C.NUMERIC, _C.UNKNOWN)
ENDED = (*LIKE_A_CRASH, _C.NODE, _C.CHECKPOINT, _C.STORAGE, _C.PRECHECK)
"""After these training does not go on by itself."""


def off(answer: LevelRows) -> dict[FaultClass, LevelRows]:
    """Nobody asked for fault tolerance: what ended nothing is noted, the rest is the end or a retry."""
    return {**like(NOTE, FaultClass), **NO_FAULT, **like(answer, ENDED)}


THEIRS = Policy(
    ladders=(),
    no_progress_restarts=None,
    no_progress_owners=ALL_OWNERS,
    rollbacks=None,
    suspects_checkpoints=False,
    escalates=False,
    spaced=False,
)
"""What none of them has: the limits, the escalation, the spacing and the suspicion that are native."""
