"""How a Cerebras job restarts: always as a whole, until restarts bring no new checkpoint."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.levels import FaultClass, Level
from everstep.core.spec import (
    ALL_OWNERS,
    Match,
    Policy,
    Rule,
    ladder_rows,
)
from everstep.dialects.policies import (
    ALIKE,
    FAIL,
    JOB,
    NO_FAULT,
    THEIRS,
    like,
    off,
)

_C, _L = FaultClass, Level

CANNOT_BE_REPEATED: tuple[Rule, ...] = tuple(
    Rule(match=Match(exception=exception), action="fail", why=why)
    for exception, why in (
        (r"(?i)compil|lowering", "a compile error comes again at every start"),
        (r"AssertionError", "a failed assertion comes again at every start"),
        (r"(?i)cancel", "somebody cancelled the job through the cluster's own tool"),
    )
)
"""What the source calls non-recoverable, whatever the number of restarts left."""


def cerebras(*, max_num_restarts: int) -> Policy:
    """Every failure starts all over; what ends it is restarts of any owner without a new checkpoint."""
    return replace(
        THEIRS,
        ladders=ladder_rows({**like(JOB, FaultClass), **ALIKE, **NO_FAULT, _C.HANG: FAIL}),
        rules=CANNOT_BE_REPEATED,
        no_progress_restarts=max_num_restarts,
        no_progress_owners=ALL_OWNERS,
        only_checkpoints=True,
    )


WITHOUT_RESTARTS = replace(
    THEIRS, ladders=ladder_rows(off(FAIL), why="nothing is restarted without init.autorestart")
)
"""What holds where a document does not ask for restarts."""
