"""How a Cerebras job restarts: always as a whole, until restarts bring no new checkpoint."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.levels import FaultClass, Level
from everstep.core.spec import (
    ALL_OWNERS,
    Match,
    NumberCheck,
    Policy,
    Rule,
    ladder_rows,
)
from everstep.dialects.policies import (
    BASE_POLICY,
    FAIL,
    JOB,
    NO_FAULT,
    SHARED_LADDERS,
    same_for,
    without_tolerance,
)

_C, _L = FaultClass, Level


def _exception_pattern(words: str) -> str:
    """A pattern of exceptions with these names, in a package of Cerebras or in none."""
    return rf"^(?:(?:cerebras\w*|modelzoo)\.(?:\w+\.)*|__main__\.)?(?:{words})(?::|$)"


ITS_OWN = "Cerebras' own rule"

CANNOT_BE_REPEATED: tuple[Rule, ...] = (
    *(
        Rule(
            match=Match(exception=_exception_pattern(words)), action="fail", why=why, origin=ITS_OWN
        )
        for words, why in (
            (r"\w*(?i:compil|lowering)\w*", "a compile error comes again at every start"),
            ("AssertionError", "a failed assertion comes again at every start"),
            (r"\w*JobCancell?ed\w*", "somebody cancelled the job through the cluster's own tool"),
            (
                r"ValidationError|\w*Config(?:uration)?Error",
                "an invalid configuration is refused at every start",
            ),
        )
    ),
    Rule(
        match=Match(exit_code=(2,), log=r"(?m)^usage: "),
        action="fail",
        why="the command refuses how it is called at every start",
        origin=ITS_OWN,
    ),
)
"""What the source calls non-recoverable, whatever the number of restarts left."""


def _number_check(steps: int) -> NumberCheck:
    """After numbers went wrong a trainer checks them until it would save next."""
    return NumberCheck(
        steps=steps,
        wrong=_exception_pattern(r"\w*(?i:nan)Error"),
        stuck=_exception_pattern(r"\w*(?i:deadlock)\w*"),
    )


def cerebras(*, max_num_restarts: int, save_every: int = 0, goes_back: bool = False) -> Policy:
    """Every failure starts all over; what ends it is restarts of any owner without a new checkpoint.

    `save_every`: it trains and saves each so many steps, so that without any checkpoint there is nothing
    to restart from. `goes_back`: two equal ends in a row are blamed on the checkpoint.
    """
    return replace(
        BASE_POLICY,
        ladders=ladder_rows(
            {**same_for(FaultClass, JOB), **SHARED_LADDERS, **NO_FAULT, _C.HANG: FAIL}
        ),
        rules=CANNOT_BE_REPEATED,
        no_progress_restarts=max_num_restarts,
        no_progress_owners=ALL_OWNERS,
        rollbacks=Policy().rollbacks,
        suspects_checkpoints=goes_back,
        only_checkpoints=True,
        own_checkpoints=True,
        needs_checkpoint=save_every > 0,
        number_check=_number_check(save_every) if save_every > 0 else None,
    )


WITHOUT_RESTARTS = replace(
    BASE_POLICY,
    ladders=ladder_rows(
        without_tolerance(FAIL), why="nothing is restarted without init.autorestart"
    ),
    own_checkpoints=True,
)
"""Policy of a document without `init.autorestart`."""
