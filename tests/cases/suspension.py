"""Jobs in which nothing moves."""

from __future__ import annotations

from tests.cases.case import (
    HANG,
    ONCE,
    RESTARTED,
    RETRY,
    RUSHED,
    SLOTS,
    Case,
    Deed,
    ends,
    every_slot,
)

CASES: tuple[Case, ...] = (
    Case(
        number=24,
        time_scale=RUSHED,
        name="suspended",
        annotations={RETRY: "3", HANG: "true"},
        deeds=(Deed(start=1, what="still"), ends(2, at_s=2500)),
        rows=(RESTARTED,),
        counts=every_slot((1, 1), (1, 2)),
        pods=every_slot(0, 0),
        used={"job": 0},
        events=("JobStarted", "JobHanged", "JobRestarted", "JobCompleted"),
    ),
    *(
        Case(
            number=25,
            time_scale=RUSHED,
            name=name,
            annotations={RETRY: "3", HANG: "true"},
            before=before,
            deeds=(Deed(start=1, what=what), ends(1, at_s=8000)),
            counts=ONCE,
            silent=("JobHanged",),
            is_real=False,
        )
        for name, before, what in (
            ("its bytes move", (), "hang JOB 2 io"),
            (
                "its devices vary",
                tuple(f"metric n{slot} 0 vary" for slot in range(SLOTS)),
                "; ".join(f"hang JOB {rank}" for rank in range(SLOTS)),
            ),
        )
    ),
    *(
        Case(
            number=26,
            time_scale=RUSHED,
            name=name,
            annotations={RETRY: "3", HANG: "true"},
            deeds=(Deed(start=1, what=what), ends(2, at_s=2500)),
            rows=(RESTARTED,),
            kinds=(kind,),
            counts=every_slot((1, 1), (1, 2)),
            events=("JobHanged", "JobRestarted"),
            is_real=False,
        )
        for name, what, kind in (
            ("one worker idle and the rest busy", "hang JOB 2", "hang.instance"),
            (
                "all flat and bytes move",
                "; ".join(f"hang JOB {rank} io" for rank in range(SLOTS)),
                "hang.all",
            ),
        )
    ),
    Case(
        number=27,
        time_scale=RUSHED,
        name="suspended and nobody asked for a restart",
        annotations={RETRY: "3"},
        deeds=(Deed(start=1, what="still", notes=1), ends(1, at_s=4000)),
        counts=ONCE,
        used={"job": 0},
        events=("JobStarted", "JobHanged", "JobCompleted"),
    ),
    Case(
        number=27,
        time_scale=RUSHED,
        name="a job without devices",
        annotations={RETRY: "3", HANG: "true"},
        overlay={"accelerator": "none"},
        deeds=(
            Deed(start=1, what="still"),
            Deed(start=1, what="long", at_s=8000),
            ends(1, at_s=8001),
        ),
        counts=ONCE,
        silent=("JobHanged",),
    ),
    Case(
        number=29,
        time_scale=RUSHED,
        name="suspended every time",
        annotations={RETRY: "3", HANG: "true"},
        deeds=tuple(
            Deed(start=n, what="still", at_s=at_s)
            for n, at_s in enumerate((100, 2100, 4100, 6100), start=1)
        ),
        rows=(RESTARTED,) * 3,
        ends="Failed",
        because="3 suspension restarts in a row did not help",
        counts=every_slot((1, 1), (1, 2), (1, 3), (1, 4)),
        used={"job": 0},
    ),
    Case(
        number=29,
        time_scale=RUSHED,
        name="a checkpoint begins a new series of suspensions",
        annotations={RETRY: "3", HANG: "true"},
        deeds=(
            Deed(start=1, what="still", at_s=100),
            Deed(start=2, what="still", at_s=2100),
            Deed(start=3, what="save 2", at_s=5200),
            Deed(start=3, what="still", at_s=5300),
            Deed(start=4, what="still", at_s=7300),
            ends(5, at_s=9300),
        ),
        rows=(RESTARTED,) * 4,
        counts=every_slot((1, 1), (1, 2), (1, 3), (1, 4), (1, 5)),
    ),
)
