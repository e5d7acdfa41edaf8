"""Jobs of MindCluster: what their labels switch on, and which budget pays for what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.cases.case import FATAL, HBM, ONCE, RUNS, Case, Deed, Row, device, ends, exits

SCHEDULING, TIMES, POD = "fault-scheduling", "fault-retry-times", "pod-rescheduling"
SUB_HEALTHY, PATH = "subHealthyStrategy", "huawei.com/recover_policy_path"
FORCE = {SCHEDULING: "force"}
BOTH = {"fault_retry_times": 1, "backoff_limit": 1}
SOON = {"limits": {"spare_s": 0.5}}

REBUILT = Row(recover="job_reschedule", scenario="job_failed", billed={"fault_retry_times": 1})
NO_MORE = replace(REBUILT, result="quotaExceeded")
LEFT = Row(recover="job_reschedule_with_taint", isolated=True)
POD_LEFT = Row(recover="pod_reschedule", isolated=True)
BROKEN = Row(recover="job_reschedule_with_taint", scenario="chip_fault", isolated=True)
MOVED = Row(recover="pod_reschedule", scenario="job_subhealth")
HERE = Row(recover="npu_proc_restart", scenario="chip_fault", start_type="restarted")
AGAIN = Row(
    recover="proc_restart",
    scenario="job_failed",
    start_type="restarted",
    billed={"max_restarts": 1},
)

IN_PLACE = {"recover-strategy": "recover-in-place"}
UNWELL, TO_BE_LEFT, RESET, NEW_RUN = "80818C06", "110001024", "40F84E00", "80C98009"
IN_NO_LIST = "80FFFFFF"

SWITCH = "node=n2 code=[0x08520003,na,L2,na]"


def lost(start: int, node: str) -> Deed:
    return Deed(start=start, what=f"node-down {node}")


def switch(start: int, what: str, **k: Any) -> Deed:
    """What an observer reports of the switch between the chips of n2."""
    return Deed(start=start, what=f"fact JOB device.{what} {SWITCH}", **k)


CASES: tuple[Case, ...] = (
    *(
        Case(
            number=50,
            name=f"{what} scheduling and a lost node",
            labels=labels,
            deeds=(lost(1, "n2"),),
            ends="Failed",
            counts=ONCE,
            is_real=what == "off",
        )
        for what, labels in (
            ("no", {}),
            ("off", {SCHEDULING: "off", TIMES: "3", POD: "on"}),
            ("foo", {SCHEDULING: "foo", TIMES: "3"}),
        )
    ),
    *(
        Case(
            number=50,
            name=f"{word} and a lost node",
            labels={SCHEDULING: word},
            deeds=(lost(1, "n2"), ends(2, at_s=again_s)),
            rows=(LEFT,),
            isolated=("n2",),
            restarts=1,
        )
        # The script of the fake cluster makes no step, so it does not end when it is asked to: only
        # after 900 s it is killed, and there is no second start at 200 s that could end.
        for word, again_s in (("grace", 1_200.0), ("force", 200.0))
    ),
    Case(
        number=51,
        name="two retries and a chip between",
        labels={**FORCE, TIMES: "2"},
        deeds=(exits(1), device(2, FATAL), exits(3), exits(4)),
        rows=(REBUILT, BROKEN, REBUILT, NO_MORE),
        ends="Failed",
        used={"fault_retry_times": 2},
        isolated=("n2",),
        restarts=3,
    ),
    Case(
        number=52,
        name="the smaller limit ends it",
        labels={**FORCE, TIMES: "5"},
        backoff_limit=2,
        deeds=(exits(1), exits(2), exits(3)),
        rows=(replace(REBUILT, billed=BOTH), replace(REBUILT, billed=BOTH), NO_MORE),
        ends="Failed",
        used={"fault_retry_times": 2, "backoff_limit": 2},
        restarts=2,
    ),
    Case(
        number=53,
        name="the node of rank 0",
        labels={**FORCE, POD: "on"},
        deeds=(lost(1, "n0"), lost(2, "n2"), ends(3)),
        rows=(LEFT, POD_LEFT),
        isolated=("n0", "n2"),
        restarts=2,
        nodes=7,
    ),
    Case(
        number=53,
        name="never the whole job",
        labels={**FORCE, POD: "on"},
        annotations={PATH: "pod"},
        deeds=(lost(1, "n2"),),
        rows=(replace(POD_LEFT, result="failed"),),
        ends="Failed",
        isolated=("n2",),
        nodes=4,
        restarts=1,
        overlay={"limits": {"spare_s": 0.5, "requeue_s": 0.5}},
    ),
    Case(
        number=54,
        name="a chip that is to be left some day",
        labels={**FORCE, POD: "on", SUB_HEALTHY: "forceExit"},
        deeds=(device(1, TO_BE_LEFT, notes=1), ends(1)),
        counts=ONCE,
    ),
    Case(
        number=55,
        name="sub-health is ignored",
        labels={**FORCE, POD: "on"},
        deeds=(device(1, UNWELL, notes=1), ends(1)),
        counts=ONCE,
    ),
    *(
        Case(
            number=55,
            name=f"sub-health and {strategy}",
            labels={**FORCE, POD: "on", SUB_HEALTHY: strategy},
            deeds=(device(1, UNWELL), ends(2)),
            rows=(MOVED,),
            restarts=1,
            pods={0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (0, 0)},
            is_real=strategy != "forceExit",
        )
        for strategy in ("graceExit", "forceExit", "hotSwitch")
    ),
    Case(
        number=55,
        name="a hot switch without a spare",
        labels={**FORCE, POD: "on", SUB_HEALTHY: "hotSwitch"},
        deeds=(
            device(1, UNWELL, records=0),
            device(1, UNWELL, node="n1", at_s=3 * RUNS, notes=2),
            ends(1, at_s=4 * RUNS),
        ),
        nodes=4,
        rows=(replace(MOVED, result="downgrade", start_type="init_or_rescheduled"),),
        counts=ONCE,
        restarts=1,
        is_real=False,
    ),
    *(
        Case(
            number=55,
            name=f"a switch that is down for {lasts_s:g} s, and {strategy}",
            labels={**FORCE, POD: "on", SUB_HEALTHY: strategy},
            deeds=(
                switch(1, "fault", notes=1),
                switch(1, "healed", at_s=RUNS + lasts_s),
                ends(len(rows) + 1, at_s=5 * RUNS),
            ),
            rows=rows,
            restarts=len(rows),
            pods={0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (0, 0)} if rows else {},
            is_real=False,
        )
        for strategy, lasts_s, rows in (
            ("forceExit", 299.0, ()),
            ("forceExit", 301.0, (MOVED,)),
            ("hotSwitch", 301.0, (MOVED,)),
            ("ignore", 301.0, ()),
        )
    ),
    *(
        Case(
            number=56,
            name=f"{code} {times} times in a day",
            labels={**FORCE, TIMES: "9", POD: "on"},
            annotations=IN_PLACE,
            deeds=(*(device(n, code) for n in range(1, times + 1)), ends(times + 1)),
            rows=(
                *((HERE,) * (times - 1)),
                replace(POD_LEFT, scenario="chip_fault", before="npu_proc_restart"),
            ),
            isolated=("n2",),
            used={"fault_retry_times": 0},
            restarts=1,
            is_real=code == HBM,  # a code is only a word to a device
        )
        for code, times in ((HBM, 2), (NEW_RUN, 3))
    ),
    Case(
        number=56,
        name="once fewer",
        labels={**FORCE, TIMES: "9", POD: "on"},
        annotations=IN_PLACE,
        deeds=(device(1, HBM), device(2, NEW_RUN), device(3, NEW_RUN), ends(4)),
        rows=(HERE,) * 3,
        is_real=False,
    ),
    Case(
        number=58,
        name="a code on two chips at once",
        labels={**FORCE, TIMES: "9", POD: "on"},
        annotations=IN_PLACE,
        deeds=(
            device(1, HBM),
            device(2, HBM, node="n1", at_s=RUNS + 20),
            device(3, HBM, at_s=4 * RUNS),
            ends(4, at_s=5 * RUNS),
        ),
        rows=(HERE,) * 3,
        time_scale=0.2,  # within which half a minute is longer than any restart takes
    ),
    Case(
        number=59,
        name="a chip that needs a new run stays",
        labels={**FORCE, TIMES: "3", POD: "on"},
        annotations=IN_PLACE,
        deeds=(device(1, HBM), exits(2), device(3, RESET), ends(4)),
        rows=(HERE, AGAIN, replace(POD_LEFT, scenario="chip_fault")),
        isolated=("n2",),
        used={"fault_retry_times": 0, "max_restarts": 1},
        restarts=1,
    ),
    Case(
        number=59,
        name="a minor code that no list has",
        labels={**FORCE, TIMES: "3", POD: "on"},
        annotations=IN_PLACE,
        deeds=(device(1, IN_NO_LIST, "minor", notes=1), ends(1)),
        counts=ONCE,
        is_real=False,
    ),
    Case(
        number=59,
        name="a major code that no list has",
        labels={**FORCE, TIMES: "3", POD: "on"},
        annotations=IN_PLACE,
        deeds=(device(1, IN_NO_LIST, "major"), ends(2)),
        rows=(replace(POD_LEFT, scenario="chip_fault"),),
        isolated=("n2",),
        restarts=1,
        is_real=False,
    ),
)
