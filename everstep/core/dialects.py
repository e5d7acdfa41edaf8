"""The ladders, budgets and series of the other three systems; a document of theirs fills in the rest.

Each function starts from a table of all classes and replaces what the document switched on. What is
alike in all four (silence, preemption, service, plans) is one table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from everstep.core.levels import RESCHEDULING, FaultClass, Level, Owner
from everstep.core.spec import (
    ALL_OWNERS,
    ASKED_FIRST,
    Budget,
    Hindrance,
    Match,
    Policy,
    Rule,
    Series,
    ladder_rows,
)

FaultScheduling = Literal["grace", "force", "off"]
SubHealthy = Literal["ignore", "graceExit", "forceExit", "hotSwitch"]
Ladder = tuple[Level, ...]

_C, _L = FaultClass, Level

NOTE: Ladder = (_L.NOTE,)
FAIL: Ladder = (_L.FAIL,)
JOB: Ladder = (_L.JOB,)

IN_A_ROW = 3
"""So many restarts of a series happen; the next failure of its kind ends the phase."""

ALIKE: Mapping[FaultClass, Ladder] = {
    _C.UNREACHABLE: NOTE,
    _C.PREEMPTED: JOB,
    _C.MAINTENANCE: JOB,
    _C.PLANNED: JOB,
    _C.CHECKPOINT: (_L.ROLLBACK,),
    _C.STORAGE: (_L.IN_PLACE,),
}
"""What every system answers alike."""

NO_FAULT: Mapping[FaultClass, Ladder] = {
    **{cls: ALIKE[cls] for cls in (_C.UNREACHABLE, _C.PREEMPTED, _C.MAINTENANCE, _C.PLANNED)},
    _C.SUBHEALTH: NOTE,
    _C.SLOW: NOTE,
}
"""Nothing of the job failed: answered as ever, also where a document wants no fault tolerance."""


def _chosen(*levels: tuple[Level, bool]) -> Ladder:
    """The levels that are switched on, in their order."""
    return tuple(level for level, on in levels if on)


def _like(answer: Ladder, classes: Iterable[FaultClass]) -> dict[FaultClass, Ladder]:
    return dict.fromkeys(classes, answer)


LIKE_A_CRASH = (_C.CRASH, _C.NUMERIC, _C.UNKNOWN)
ENDED = (*LIKE_A_CRASH, _C.NODE, _C.CHECKPOINT, _C.STORAGE, _C.PRECHECK)
"""After these training does not go on by itself."""


def _off(answer: Ladder) -> dict[FaultClass, Ladder]:
    """Nobody asked for fault tolerance: what ended nothing is noted, the rest is the end or a retry."""
    return {**_like(NOTE, FaultClass), **NO_FAULT, **_like(answer, ENDED)}


# -- ModelArts ----------------------------------------------------------------------------------


JOB_BUDGET = "job"
"""What job-retry-num allows: Maximum Restarts, as they call it."""
OFF = "fault tolerance is off without the annotation fault-tolerance/job-retry-num"


def modelarts(
    *,
    job_retry: int | None,
    pod_retry: int | None = None,
    unconditional: bool = False,
    hang_retry: bool = False,
    operator_retry: bool = False,
) -> Policy:
    """`job_retry` None: no fault tolerance at all, whatever else is asked for."""
    if job_retry is None:
        return _policy(_off(FAIL), why=OFF, stops_at_limit=True)
    pod = (_L.POD, pod_retry is not None)
    ladders = {
        **ALIKE,
        **NO_FAULT,
        **_like(JOB if unconditional else FAIL, LIKE_A_CRASH),
        _C.HANG: (_L.SUSPENSION,) if hang_retry else NOTE,
        _C.DEVICE: _chosen((_L.IN_PLACE, True), pod, (_L.JOB, True)),
        _C.DEVICE_USER: (_L.IN_PLACE, _L.JOB),
        **_like(_chosen(pod, (_L.JOB, True)), (_C.DEVICE_FATAL, _C.NODE)),
        _C.PRECHECK: JOB,
        _C.NETWORK: _chosen(
            (_L.OPERATOR_ONLINE, operator_retry), (_L.IN_PLACE, True), (_L.JOB, True)
        ),
    }
    limits = {_L.JOB: (JOB_BUDGET, job_retry), _L.POD: ("pod", pod_retry)}
    return _policy(
        ladders,
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


# -- MindCluster --------------------------------------------------------------------------------

STRATEGY: Mapping[str, Level] = {
    "retry": _L.PROCESS_ONLINE,
    "recover": _L.PROCESS,
    "recover-in-place": _L.IN_PLACE,
    "elastic-training": _L.ELASTIC,
}
"""`recover-strategy` by its levels. `dump` is a step and `exit` is how every ladder ends."""


NEVER_JOB = Hindrance((_L.JOB,), "the document never goes beyond pod level")
"""`recover_policy_path: pod`; a failed pod level ends the phase."""
RANK0_NEEDS_JOB = Hindrance(
    (_L.POD, _L.ELASTIC, _L.PROCESS), "the fault is under rank 0", under_rank0=True
)


def mindcluster(
    *,
    fault_scheduling: FaultScheduling = "off",
    pod_rescheduling: bool = False,
    fault_retry_times: int | None = None,
    backoff_limit: int | None = None,
    recover_strategy: Iterable[str] = (),
    sub_healthy: SubHealthy = "ignore",
    recover_policy_path_pod: bool = False,
    elastic: bool = False,
) -> Policy:
    """`backoff_limit` is also what a Volcano job's maxRetry says. 0 or less means not given."""
    budgets = _mindcluster_budgets(fault_retry_times, backoff_limit)
    if fault_scheduling == "off":
        return _policy(_off(JOB if _positive(backoff_limit) else FAIL), budgets=budgets)
    on = {STRATEGY[name] for name in recover_strategy if name in STRATEGY}
    if elastic:
        on.add(_L.ELASTIC)
    pod = pod_rescheduling or recover_policy_path_pod
    is_graceful = sub_healthy in ("graceExit", "hotSwitch")
    return _policy(
        _mindcluster_ladders(
            on | ({_L.POD} if pod else set()),
            retries_exits=_positive(fault_retry_times) is not None,
            sub_healthy=sub_healthy,
        ),
        budgets=budgets,
        hindrances=(NEVER_JOB if recover_policy_path_pod else RANK0_NEEDS_JOB,),
        asks_first=(*ASKED_FIRST, *((_C.SUBHEALTH, _C.SLOW) if is_graceful else ())),
    )


def _mindcluster_ladders(
    on: set[Level], *, retries_exits: bool, sub_healthy: SubHealthy
) -> dict[FaultClass, Ladder]:
    def only(*levels: Level) -> Ladder:
        return (*(level for level in levels if level in on), _L.JOB)

    device = only(_L.PROCESS_ONLINE, _L.PROCESS, _L.IN_PLACE, _L.POD, _L.ELASTIC)
    return {
        **ALIKE,
        **NO_FAULT,
        **_like(only(_L.POD) if retries_exits else FAIL, LIKE_A_CRASH),
        _C.HANG: NOTE,
        _C.DEVICE: device,
        _C.DEVICE_USER: device,
        _C.DEVICE_FATAL: only(_L.POD, _L.ELASTIC),
        _C.NODE: only(_L.PROCESS, _L.POD, _L.ELASTIC),
        _C.PRECHECK: JOB,
        _C.NETWORK: only(_L.PROCESS_ONLINE, _L.PROCESS, _L.IN_PLACE, _L.POD),
        **_like(NOTE if sub_healthy == "ignore" else only(_L.POD), (_C.SUBHEALTH, _C.SLOW)),
    }


def _mindcluster_budgets(retries: int | None, backoff: int | None) -> tuple[Budget, ...]:
    known = (
        Budget(
            name="fault_retry_times",
            limit=_positive(retries),
            levels=(_L.POD, _L.JOB),
            owners=tuple(owner for owner in ALL_OWNERS if owner is not Owner.INFRA),
            when="succeeded",
        ),
        Budget(name="backoff_limit", limit=_positive(backoff), levels=tuple(sorted(RESCHEDULING))),
    )
    return tuple(budget for budget in known if budget.limit is not None)


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None


# -- Cerebras -----------------------------------------------------------------------------------

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
    return _policy(
        {**_like(JOB, FaultClass), **ALIKE, **NO_FAULT, _C.HANG: FAIL},
        rules=CANNOT_BE_REPEATED,
        no_progress_restarts=max_num_restarts,
        no_progress_owners=ALL_OWNERS,
        only_checkpoints=True,
    )


def _policy(
    ladders: Mapping[FaultClass, Ladder],
    *,
    budgets: tuple[Budget, ...] = (),
    series: tuple[Series, ...] = (),
    rules: tuple[Rule, ...] = (),
    no_progress_restarts: int | None = None,
    no_progress_owners: tuple[Owner, ...] = ALL_OWNERS,
    precheck: bool = False,
    hindrances: tuple[Hindrance, ...] = (),
    asks_first: tuple[FaultClass, ...] = ASKED_FIRST,
    only_checkpoints: bool = False,
    why: str = "",
    stops_at_limit: bool = False,
) -> Policy:
    """A policy of theirs: without the escalation and the spacing that are native."""
    return Policy(
        ladders=ladder_rows(ladders, why=why),
        hindrances=hindrances,
        budgets=budgets,
        series=series,
        rules=rules,
        no_progress_restarts=no_progress_restarts,
        no_progress_owners=no_progress_owners,
        escalates=False,
        spaced=False,
        precheck=precheck,
        asks_first=asks_first,
        only_checkpoints=only_checkpoints,
        stops_at_limit=stops_at_limit,
    )
