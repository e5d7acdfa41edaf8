"""Jobs of Cerebras documents: restarts are counted until one brings a new checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.cases.case import REBUILT, SLOTS, Case, Deed, Row, ends, exits

SECOND_LOOKS = 30.0
"""How many seconds one second is: a job that waits for a checkpoint looks each second then."""

HANGS_SOON = 20.0
"""A minute without a sign of life is over after three seconds."""

AGAIN = Row(recover=REBUILT.recover, scenario="job_failed")
BACK = Row(recover="proc_restart", scenario="job_failed", start_type="restarted")
NOT_BACK = replace(BACK, result="downgrade")
PLANNED = Row(recover=REBUILT.recover, scenario=None)
PROGRESS_RESET = "restarts without progress were 1, now 0"
VALIDATES = {"val_dataloader": {"data_processor": "Synthetic"}}


def trainer(restarts: int, *, fits: bool = True, **sections: Any) -> Mapping[str, Any]:
    init = {
        "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": SLOTS}},
        "checkpoint": {"steps": 4},
        "autorestart": {"max_num_restarts": restarts, "min_num_csx": SLOTS},
    }
    fit = {"fit": {"train_dataloader": {"data_processor": "Synthetic"}}} if fits else {}
    return {"init": init, **fit, **sections}


def saves(start: int, step: int) -> Deed:
    return Deed(start=start, what=f"save {step}")


def is_seen_to_save(start: int, step: int) -> Deed:
    return Deed(start=start, what=f"saved {step}")


def fails(start: int, exception: str) -> Deed:
    return Deed(start=start, what=f"exit 0 1 {exception}")


GOES_BACK = {"recovery": {"rollbacks": 2}}

OF_THE_DATA = {
    "match": {"exception": "^IndexError"},
    "action": "fail",
    "why": "a token is out of bounds",
}

CASES: tuple[Case, ...] = (
    Case(
        number=33,
        name="no new checkpoint ever",
        trainer=trainer(3),
        deeds=(saves(1, 0), *(exits(start) for start in (1, 2, 3, 4))),
        rows=(AGAIN,) * 3,
        ends="Failed",
        because="no progress after 3 restarts, no new checkpoint (the newest is step 0)",
        resumed=(None, 0, 0, 0),
        unlogged=("progress:",),
        restarts=3,
    ),
    Case(
        number=34,
        name="a restarted run saves and fails",
        trainer=trainer(1),
        deeds=(
            *(saves(1, 0), exits(1)),
            *(is_seen_to_save(2, 4), exits(2)),
            ends(3),
        ),
        rows=(AGAIN,) * 2,
        resumed=(None, 0, 4),
        logged=(
            "restart 1: started",
            f"progress: a newer checkpoint, step 4; {PROGRESS_RESET}",
            "restart 2",
        ),
        restarts=2,
        time_scale=SECOND_LOOKS,
    ),
    Case(
        number=35,
        name="as many restarts after progress as before",
        trainer=trainer(3),
        deeds=(
            *(saves(1, 0), exits(1)),
            *(is_seen_to_save(2, 4), exits(2)),
            *(exits(start) for start in (3, 4, 5)),
        ),
        rows=(AGAIN,) * 4,
        ends="Failed",
        because="no progress after 3 restarts, no new checkpoint (the newest is step 4)",
        resumed=(None, 0, 4, 4, 4),
        restarts=4,
        time_scale=SECOND_LOOKS,
    ),
    Case(
        number=36,
        name="the same step saved again",
        trainer=trainer(1),
        deeds=(saves(1, 4), exits(1), saves(2, 4), exits(2)),
        rows=(AGAIN,),
        ends="Failed",
        because="no progress after 1 restart, no new checkpoint (the newest is step 4)",
        resumed=(None, 4),
        unlogged=("progress:",),
        restarts=1,
    ),
    Case(
        number=37,
        name="nothing was saved yet",
        trainer=trainer(100),
        deeds=(exits(1),),
        ends="Failed",
        because="ckpt yet: nothing to restart from",
        resumed=(None,),
    ),
    *(
        Case(
            number=38,
            name=f"never again after {exception}",
            trainer=trainer(100),
            deeds=(saves(1, 4), fails(1, exception)),
            ends="Failed",
            because=because,
            resumed=(None,),
            is_real=exception
            == "ConfigError",  # a real process has no other way to say another name
        )
        for exception, because in (
            ("ApplianceCompilationError", "a compile error comes again"),
            ("AssertionError", "a failed assertion comes again"),
            ("ConfigError", "an invalid configuration is refused"),
            ("ValidationError", "an invalid configuration is refused"),
            ("ClusterJobCancelledByCsctl", "somebody cancelled the job"),
        )
    ),
    *(
        Case(
            number=38,
            name=f"not for {exception} of another package",
            trainer=trainer(1),
            deeds=(saves(1, 4), fails(1, exception), ends(2)),
            rows=(AGAIN,),
            resumed=(None, 4),
            restarts=1,
            is_real=False,  # its process has no such package
        )
        for exception in (
            "pydantic_core._pydantic_core.ValidationError",
            "torch._dynamo.exc.RecompileLimitExceeded",
        )
    ),
    Case(
        number=39,
        name="killed after an error that was logged",
        trainer=trainer(1),
        deeds=(
            saves(1, 4),
            Deed(start=1, what="log AssertionError"),
            Deed(start=1, what="kill JOB 0 signal 9"),
            ends(2),
        ),
        rows=(AGAIN,),
        resumed=(None, 4),
        restarts=1,
    ),
    Case(
        number=0,
        name="the same error at every start",
        trainer=trainer(2),
        deeds=(saves(1, 4), saves(1, 8), *(fails(start, "IndexError") for start in (1, 2, 3))),
        rows=(AGAIN, AGAIN),
        ends="Failed",
        because="(the newest is step 8); the last: exit code 1: IndexError",
        resumed=(None, 8, 8),
        restarts=2,
    ),
    Case(
        number=0,
        name="the same error at every start and nothing to go back to",
        trainer=trainer(2),
        overlay=GOES_BACK,
        deeds=(saves(1, 4), *(fails(start, "IndexError") for start in (1, 2, 3))),
        rows=(AGAIN, NOT_BACK, replace(AGAIN, before="proc_restart")),
        ends="Failed",
        because="(the newest is step 4); the last: exit code 1: IndexError",
        resumed=(None, 4, 4),
        restarts=2,
    ),
    Case(
        number=0,
        name="the same error twice leaves a checkpoint behind",
        trainer=trainer(2),
        overlay=GOES_BACK,
        deeds=(
            *(saves(1, 4), saves(1, 8)),
            *(fails(start, "IndexError") for start in (1, 2, 3)),
        ),
        rows=(AGAIN, BACK),
        ends="Failed",
        because="the last: exit code 1: IndexError",
        resumed=(None, 8, 4),
        restarts=1,
    ),
    Case(
        number=0,
        name="the same error and a rule for it",
        trainer=trainer(2),
        overlay={"recovery": {"rules": [OF_THE_DATA]}},
        deeds=(saves(1, 4), fails(1, "IndexError")),
        ends="Failed",
        because="your rule says fail: a token is out of bounds",
    ),
    Case(
        number=0,
        name="wrong numbers are looked into until they are right",
        trainer=trainer(2),
        deeds=(
            *(saves(1, 4), fails(1, "ApplianceNanError")),
            is_seen_to_save(2, 8),
            *(Deed(start=2, what=f"exit {rank} 0", at_s=400) for rank in range(SLOTS)),
            ends(3),
        ),
        rows=(AGAIN, PLANNED),
        resumed=(None, 4, 8),
        checks=(None, "4", None),
        logged=("the next run checks its numbers for 4 steps", "the numbers are right again"),
        restarts=2,
        time_scale=SECOND_LOOKS,
    ),
    Case(
        number=0,
        name="wrong numbers and nobody is found",
        trainer=trainer(100),
        deeds=(
            *(saves(1, 4), fails(1, "ApplianceNanError")),
            *(fails(start, "ApplianceDeadlockError") for start in (2, 3)),
        ),
        rows=(AGAIN,) * 2,
        ends="Failed",
        because="no node is the cause of it, but the code or the data",
        checks=(None, "4", "4"),
        restarts=2,
    ),
    Case(
        number=0,
        name="wrong numbers of a node that is found",
        trainer=trainer(100),
        deeds=(
            *(saves(1, 4), fails(1, "ApplianceNanError")),
            Deed(start=2, what="kill JOB 0 exit 1 exception=ApplianceDeadlockError; node-down n2"),
            ends(3),
        ),
        rows=(AGAIN, Row(recover="job_reschedule_with_taint", isolated=True)),
        isolated=("n2",),
        checks=(None, "4", None),
        restarts=2,
        is_real=False,
    ),
    Case(
        number=0,
        name="what was in the folder before is left alone",
        trainer=trainer(1),
        stale=100,
        deeds=(
            *(saves(1, 4), exits(1)),
            *(is_seen_to_save(2, 8), exits(2)),
            *(saves(3, 12), ends(3)),
        ),
        rows=(AGAIN,) * 2,
        resumed=(None, 4, 8),
        logged=("progress: a newer checkpoint, step 8",),
        saved=12,
        restarts=2,
        time_scale=SECOND_LOOKS,
    ),
    Case(
        number=0,
        name="nothing of its own was saved yet",
        trainer=trainer(1),
        stale=100,
        deeds=(exits(1),),
        ends="Failed",
        because="ckpt yet: nothing to restart from",
        resumed=(None,),
    ),
    Case(
        number=0,
        name="a validation loads what its author says",
        trainer=(trainer(1), trainer(1, fits=False, validate=VALIDATES)),
        deeds=(saves(1, 4), ends(1), exits(2), ends(3, at_s=400)),
        rows=(AGAIN,),
        resumed=(None, None, None),
        restarts=1,
    ),
    Case(
        number=0,
        name="a long validation is no hang",
        trainer=trainer(3),
        deeds=(saves(1, 4), Deed(start=1, what="validate"), ends(1, at_s=40_000)),
        resumed=(None,),
        silent=("JobHanged",),
        time_scale=HANGS_SOON,
    ),
    Case(
        number=0,
        name="what stands still altogether is over",
        trainer=trainer(3),
        deeds=(saves(1, 4), Deed(start=1, what="still")),
        ends="Failed",
        because="running slots have been still for",
        resumed=(None,),
        time_scale=HANGS_SOON,
    ),
    Case(
        number=39,
        name="killed without a word",
        trainer=trainer(1),
        deeds=(
            saves(1, 4),
            Deed(start=1, what="kill JOB 0 signal 9"),
            Deed(start=2, what="kill JOB 0 signal 9"),
        ),
        rows=(AGAIN,),
        ends="Failed",
        because="no progress after 1 restart",
        resumed=(None, 4),
        restarts=1,
    ),
    Case(
        number=47,
        name="a validation begins anew",
        trainer=trainer(2, fits=False, validate=VALIDATES),
        # Each run is healthy for longer than what counts as progress where nothing is saved.
        deeds=tuple(Deed(start=n, what="exit 0 1", at_s=n * 4_000.0) for n in (1, 2, 3)),
        rows=(AGAIN,) * 2,
        ends="Failed",
        because="no progress after 2 restarts",
        resumed=(None, None, None),
        unlogged=("progress:",),
        restarts=2,
    ),
    Case(
        number=48,
        name="a failure between two rounds of training",
        trainer=trainer(1, validate=VALIDATES),
        deeds=(
            *(saves(1, 4), exits(1)),
            *(is_seen_to_save(2, 8), exits(2)),
            *(saves(3, 12), ends(3)),
        ),
        rows=(AGAIN,) * 2,
        resumed=(None, 4, 8),
        saved=12,
        restarts=2,
        time_scale=SECOND_LOOKS,
    ),
)
