"""What the annotations of a ModelArts document switch on: its ladders, budgets and series."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.levels import FaultClass, Level
from everstep.core.spec import (
    Budget,
    Policy,
    Series,
    ladder_rows,
)
from everstep.dialects.policies import (
    BASE_POLICY,
    FAIL,
    JOB,
    LIKE_A_CRASH,
    NO_FAULT,
    NOTE,
    SHARED_LADDERS,
    levels_on,
    same_for,
    without_tolerance,
)

_C, _L = FaultClass, Level

JOB_BUDGET = "job"
"""The budget of job-retry-num, which ModelArts shows as Maximum Restarts."""

IN_A_ROW = 3
"""Restarts of a series in a row; the next failure of its kind ends the phase."""

OFF = "fault tolerance is off without the annotation fault-tolerance/job-retry-num"


def modelarts(
    *,
    job_retry: int | None,
    pod_retry: int | None = None,
    unconditional: bool = False,
    hang_retry: bool = False,
    operator_retry: bool = False,
) -> Policy:
    """The policy of these annotations; without `job_retry` no fault tolerance at all."""
    if job_retry is None:
        return replace(
            BASE_POLICY, ladders=ladder_rows(without_tolerance(FAIL), why=OFF), stops_at_limit=True
        )
    pod = (_L.POD, pod_retry is not None)
    ladders = {
        **SHARED_LADDERS,
        **NO_FAULT,
        **same_for(LIKE_A_CRASH, JOB if unconditional else FAIL),
        _C.HANG: (_L.SUSPENSION,) if hang_retry else NOTE,
        _C.DEVICE: levels_on((_L.IN_PLACE, True), pod, (_L.JOB, True)),
        _C.DEVICE_USER: (_L.IN_PLACE, _L.JOB),
        **same_for((_C.DEVICE_FATAL, _C.NODE), levels_on(pod, (_L.JOB, True))),
        _C.PRECHECK: JOB,
        _C.NETWORK: levels_on(
            (_L.OPERATOR_ONLINE, operator_retry), (_L.IN_PLACE, True), (_L.JOB, True)
        ),
    }
    limits = {_L.JOB: (JOB_BUDGET, job_retry), _L.POD: ("pod", pod_retry)}
    return replace(
        BASE_POLICY,
        ladders=ladder_rows(ladders),
        budgets=tuple(
            Budget(name=name, limit=limit, levels=(level,))
            for level, (name, limit) in limits.items()
            if limit is not None
        ),
        series=(
            Series(name="unconditional", limit=IN_A_ROW, levels=JOB),
            Series(name="suspension", limit=IN_A_ROW, levels=(_L.SUSPENSION,)),
        ),
        precheck=True,
        stops_at_limit=True,
    )
