"""Jobs of Cerebras documents that may live with fewer systems than they want."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.dialects.cerebras.params import MICRO_BATCH
from tests.cases.case import ISOLATED, SLOTS, Case, Deed, Row, ends, exits
from tests.cases.counting import AGAIN, saves, trainer

ALL = (0, 1, 2, 3)
THREE = (0, 1, 2)
LOST = Deed(start=1, what="node-down n2")
SMALLER = Row(recover=ISOLATED.recover, isolated=True)
SOON = {"limits": {"spare_s": 4, "requeue_s": 8}}
DOES_NOT_FIT = {"recovery": {"rules": [{"match": {"exit_code": [7]}, "action": "resize"}]}}


def at_least(systems: int, **init: Any) -> Mapping[str, Any]:
    config = trainer(100)
    autorestart = {**config["init"]["autorestart"], "min_num_csx": systems}
    return {**config, "init": {**config["init"], "autorestart": autorestart, **init}}


CASES: tuple[Case, ...] = (
    Case(
        number=41,
        name="one system of four is lost",
        trainer=at_least(2, callbacks=[{"ScopedTrainFlags": {MICRO_BATCH: 32}}]),
        micro_batches=("32", "auto"),
        nodes=SLOTS,
        overlay=SOON,
        deeds=(saves(1, 0), LOST, ends(2)),
        rows=(SMALLER,),
        slots=(ALL, THREE),
        resumed=(None, 0),
        isolated=("n2",),
        restarts=1,
    ),
    Case(
        number=42,
        name="three of four are lost",
        trainer=at_least(2),
        nodes=SLOTS,
        overlay=SOON,
        deeds=(
            *(saves(1, 0), LOST),
            *(Deed(start=2, what="node-down n1"), Deed(start=3, what="node-down n3")),
        ),
        rows=(SMALLER, SMALLER, Row(recover=SMALLER.recover, isolated=True, result="failed")),
        ends="Failed",
        because="only 1 of 4 slots found a place within 8 s (the minimum is 2)",
        slots=(ALL, THREE, (0, 1)),
        isolated=("n1", "n2", "n3"),
        restarts=3,
    ),
    Case(
        number=43,
        name="there are four again at the next restart",
        trainer=at_least(2),
        nodes=SLOTS,
        overlay=SOON,
        deeds=(saves(1, 0), LOST, Deed(start=2, what="add-node n4"), exits(2), ends(3)),
        rows=(SMALLER, AGAIN),
        slots=(ALL, THREE, ALL),
        isolated=("n2",),
        restarts=2,
    ),
    Case(
        number=44,
        name="three do not work",
        trainer=at_least(2),
        nodes=SLOTS,
        overlay={**SOON, **DOES_NOT_FIT},
        deeds=(saves(1, 0), LOST, exits(2, 7), ends(3)),
        rows=(SMALLER, Row(recover="job_reschedule", scenario="job_failed")),
        slots=(ALL, THREE, (0, 1)),
        isolated=("n2",),
        restarts=2,
    ),
    Case(
        number=44,
        name="three were tried beside the training and do not work",
        trainer=at_least(2),
        nodes=SLOTS,
        overlay={**SOON, "prefetch": 'test "$NNODES" != 3 && test -s {params}'},
        fake={"PREFETCH_FAILS": "3"},
        deeds=(Deed(start=1, what="save 0", notes=2), LOST, ends(2)),
        rows=(SMALLER,),
        slots=(ALL, (0, 1)),
        logged=("prefetch for 3 nodes: exit code 1", "prefetch for 2 nodes: it works"),
        isolated=("n2",),
        restarts=1,
    ),
    Case(
        number=44,
        name="three do not work and are the least",
        trainer=at_least(3),
        nodes=SLOTS,
        overlay={**SOON, **DOES_NOT_FIT},
        deeds=(saves(1, 0), LOST, exits(2, 7)),
        rows=(SMALLER, Row(recover="job_reschedule", scenario="job_failed", result="failed")),
        ends="Failed",
        because="only 3 of 4 slots found a place (the minimum is 3, known not to work: 3)",
        slots=(ALL, THREE),
        isolated=("n2",),
        restarts=2,
    ),
)
