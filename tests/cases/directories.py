"""What trainer configurations of Cerebras leave: a directory for each phase, an attempt for each run."""

from __future__ import annotations

from tests.cases.case import Attempt, Case, Deed, ends, exits
from tests.cases.counting import AGAIN, saves, trainer

PHASE = trainer(1)

CASES: tuple[Case, ...] = (
    Case(
        number=45,
        name="the second of three phases fails for good",
        trainer=(PHASE, PHASE, PHASE),
        deeds=(
            ends(1),
            *(saves(2, 4), exits(2)),
            Deed(start=3, what="exit 0 1 AssertionError"),
        ),
        rows=(AGAIN,),
        resumed=(None, None, 4),
        restarts=1,
        ends="Failed",
        because="AssertionError",
        attempts=(
            (Attempt(status="success", start=0, end=0),),
            (
                Attempt(status="failed", start=0, end=4, because="exit code 1"),
                Attempt(status="non_recoverable_failure", start=4, end=4, because="AssertionError"),
            ),
        ),
    ),
    Case(
        number=49,
        name="every attempt is in the summary",
        trainer=trainer(2),
        deeds=(
            *(saves(1, 0), saves(1, 4), exits(1)),
            *(saves(2, 8), exits(2)),
            *(exits(3), ends(4)),
        ),
        rows=(AGAIN,) * 3,
        resumed=(None, 4, 8, 8),
        restarts=3,
        attempts=(
            (
                Attempt(status="failed", start=0, end=4, because="exit code 1"),
                Attempt(status="failed", start=4, end=8, because="exit code 1"),
                Attempt(status="failed", start=8, end=8, because="exit code 1"),
                Attempt(status="success", start=8, end=8),
            ),
        ),
    ),
)
