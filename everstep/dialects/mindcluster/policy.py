"""What the labels and annotations of a MindCluster document switch on: its ladders and budgets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from everstep.core.levels import RESCHEDULING, FaultClass, Level, Owner
from everstep.core.spec import (
    ALL_OWNERS,
    SAVES_BEFORE_STOP,
    Budget,
    Exclusion,
    LadderRow,
    Match,
    Policy,
    Rule,
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
    LevelRows,
    same_for,
    without_tolerance,
)
from everstep.faults.rules import duration_rules, job_duration_rules, relation_rules, repeat_rules

_C, _L = FaultClass, Level

FaultScheduling = Literal["grace", "force", "off"]
SubHealthy = Literal["ignore", "graceExit", "forceExit", "hotSwitch"]

STRATEGY: Mapping[str, Level] = {
    "retry": _L.PROCESS_ONLINE,
    "recover": _L.PROCESS,
    "recover-in-place": _L.IN_PLACE,
    "elastic-training": _L.ELASTIC,
}
"""`recover-strategy` by its levels. `dump` is a step and `exit` is how every ladder ends."""


_LIKE_SUBHEALTH = (_C.SUBHEALTH, _C.SLOW)

RESET_LEVELS = ("FreeRestartNPU", "RestartNPU")
"""Levels of fault codes after which the chip has to be reset."""

TO_BE_LEFT = LadderRow(NOTE, (_C.SUBHEALTH,), code_levels=("PreSeparateNPU", "PreSeparateFault"))
"""A chip or a server that is taken out of service later: a job that has it stays, whatever `sub_healthy`."""

MAX_RESTARTS = 32_767
"""How often processes start again in their pods after an exit: the default of MindCluster's launcher."""

OF_THE_JOB = tuple(owner for owner in ALL_OWNERS if owner is not Owner.INFRA)
"""Owners whose faults spend the restarts after exits; faults of chips spend none, whatever caused them."""

NEVER_JOB = Exclusion(
    (_L.JOB,),
    "the document never goes beyond pod level",
    spares=(_C.PREEMPTED, _C.MAINTENANCE, _C.PLANNED),
)
"""`recover_policy_path: pod`: if the pod level fails, the phase ends. Only what is no fault moves the job."""
RANK0_NEEDS_JOB = Exclusion(
    (_L.POD, _L.ELASTIC, _L.PROCESS), "the fault is under rank 0", under_rank0=True
)

FINAL_EXITS = Rule(
    match=Match(exit_code=tuple(range(1, 128))),
    action="fail",
    why="restartPolicy ExitCode retries exit codes from 128 on",
    origin="MindCluster's own rule",
)


def mindcluster(
    *,
    fault_scheduling: FaultScheduling = "off",
    pod_rescheduling: bool = False,
    fault_retry_times: int | None = None,
    backoff_limit: int | None = None,
    recover_strategy: Collection[str] = (),
    sub_healthy: SubHealthy = "ignore",
    recover_policy_path_pod: bool = False,
    final_exits: bool = False,
) -> Policy:
    """The policy of these switches; `labels` and `document` read them, under the same names.

    `backoff_limit` is also a Volcano job's maxRetry; 0 or less: not set. `final_exits`: exit codes below 128
    end the job (restartPolicy ExitCode).
    """
    restarts_here = "recover-in-place" in recover_strategy and fault_scheduling != "off"
    budgets = _mindcluster_budgets(
        fault_retry_times, backoff_limit, MAX_RESTARTS if restarts_here else None
    )
    rules = (FINAL_EXITS,) if final_exits else ()
    if fault_scheduling == "off":
        retried = without_tolerance(JOB if _positive(backoff_limit) else FAIL)
        return replace(BASE_POLICY, ladders=ladder_rows(retried), budgets=budgets, rules=rules)
    levels_on = {STRATEGY[name] for name in recover_strategy if name in STRATEGY}
    if pod_rescheduling or recover_policy_path_pod:
        levels_on.add(_L.POD)
    saves_before_stop = tuple(_C) if fault_scheduling == "grace" else SAVES_BEFORE_STOP
    if fault_scheduling == "force" and sub_healthy in ("graceExit", "hotSwitch"):
        saves_before_stop = (*SAVES_BEFORE_STOP, *_LIKE_SUBHEALTH)
    ladders = _mindcluster_ladders(
        levels_on,
        retries_exits=_positive(fault_retry_times) is not None,
        sub_healthy=sub_healthy,
    )
    if recover_policy_path_pod:
        ladders[_C.PRECHECK] = (_L.POD,)
    return replace(
        BASE_POLICY,
        ladders=(TO_BE_LEFT, _needing_a_reset(ladders), *ladder_rows(ladders, is_whole=True)),
        budgets=budgets,
        exclusions=(NEVER_JOB if recover_policy_path_pod else RANK0_NEEDS_JOB,),
        saves_before_stop=saves_before_stop,
        stands_by=_LIKE_SUBHEALTH if sub_healthy == "hotSwitch" else (),
        rules=rules,
        repeats=repeat_rules(),
        durations=duration_rules(),
        relations=relation_rules(),
        job_durations=job_duration_rules(),
        counts_over_jobs=True,
    )


def _mindcluster_ladders(
    levels_on: set[Level], *, retries_exits: bool, sub_healthy: SubHealthy
) -> dict[FaultClass, LevelRows]:
    def only(*levels: Level) -> LevelRows:
        """Those of the levels that are switched on, then the whole job."""
        return (*(level for level in levels if level in levels_on), _L.JOB)

    device = only(_L.PROCESS_ONLINE, _L.IN_PLACE, _L.PROCESS, _L.POD, _L.ELASTIC)
    return {
        **SHARED_LADDERS,
        **NO_FAULT,
        **same_for(LIKE_A_CRASH, only(_L.IN_PLACE, _L.PROCESS, _L.POD) if retries_exits else FAIL),
        _C.HANG: NOTE,
        _C.DEVICE: device,
        _C.DEVICE_USER: device,
        _C.DEVICE_FATAL: only(_L.POD, _L.ELASTIC),
        _C.NODE: only(_L.PROCESS, _L.POD, _L.ELASTIC),
        _C.PRECHECK: JOB,
        _C.NETWORK: only(_L.PROCESS_ONLINE, _L.IN_PLACE, _L.PROCESS, _L.POD),
        **same_for(_LIKE_SUBHEALTH, _sub_health_levels(sub_healthy, only(_L.POD))),
    }


def _sub_health_levels(strategy: SubHealthy, moves: LevelRows) -> LevelRows:
    """A hot switch replaces pods even if `pod-rescheduling` is off. graceExit and forceExit have `moves`."""
    by_strategy: Mapping[str, LevelRows] = {"ignore": NOTE, "hotSwitch": (_L.POD, _L.JOB)}
    return by_strategy.get(strategy, moves)


def _needing_a_reset(ladders: Mapping[FaultClass, LevelRows]) -> LadderRow:
    """The row for chips that have to be reset: no `in_place`, which suits those that need only a new run."""
    levels = (level for level in ladders[_C.DEVICE] if level is not _L.IN_PLACE)
    return LadderRow(tuple(levels), (_C.DEVICE, _C.DEVICE_USER), code_levels=RESET_LEVELS)


def _mindcluster_budgets(
    retries: int | None, backoff: int | None, in_place: int | None
) -> tuple[Budget, ...]:
    budgets = (
        Budget(
            name="fault_retry_times",
            limit=_positive(retries),
            levels=(_L.POD, _L.JOB),
            owners=OF_THE_JOB,
            free=(_C.DEVICE_USER,),
            when="succeeded",
        ),
        Budget(name="backoff_limit", limit=_positive(backoff), levels=tuple(sorted(RESCHEDULING))),
        Budget(
            name="max_restarts",
            limit=in_place,
            levels=(_L.IN_PLACE,),
            owners=OF_THE_JOB,
            free=(_C.DEVICE_USER,),
        ),
    )
    return tuple(budget for budget in budgets if budget.limit is not None)


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None
