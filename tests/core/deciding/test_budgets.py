"""Rule 7: what a level costs, when the unit comes back, and what a used-up budget does."""

from __future__ import annotations

import pytest

from everstep.chronicle import views
from everstep.core.levels import FaultClass, Level, Owner, Step
from everstep.core.spec import Budget, Policy
from everstep.dialects import responses
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, running, sighting

_C = FaultClass
MODELARTS = modelarts(job_retry=3, pod_retry=1, unconditional=True, hang_retry=True)
MINDCLUSTER = mindcluster(
    fault_scheduling="force", pod_rescheduling=True, fault_retry_times=2, backoff_limit=3
)
IN_PLACE = mindcluster(
    fault_scheduling="force", fault_retry_times=2, recover_strategy=("recover-in-place",)
)
HARDWARE = Policy(
    budgets=(
        Budget(name="hardware", limit=2, levels=(Level.POD, Level.JOB), owners=(Owner.INFRA,)),
    ),
    no_progress_restarts=None,
)

BILLS: tuple[tuple[str, Policy, FaultClass, dict[str, int]], ...] = (
    ("modelarts: in place is free", MODELARTS, _C.DEVICE, {}),
    ("modelarts: suspension is free", MODELARTS, _C.HANG, {}),
    ("modelarts: pod has its own budget", MODELARTS, _C.NODE, {"pod": 1}),
    ("modelarts: job bills job, whoever owns it", MODELARTS, _C.CRASH, {"job": 1}),
    ("modelarts: a failed pre-check bills one job", MODELARTS, _C.PRECHECK, {"job": 1}),
    ("mindcluster: a crash bills both", MINDCLUSTER, _C.CRASH, {"fault_retry_times": 1, "backoff_limit": 1}),
    ("mindcluster: hardware bills no retry", MINDCLUSTER, _C.NODE, {"backoff_limit": 1}),
    ("mindcluster: nor a chip by its input", MINDCLUSTER, _C.DEVICE_USER, {"backoff_limit": 1}),
    ("mindcluster: which is no exit either", IN_PLACE, _C.DEVICE_USER, {}),
    ("native: nothing is limited by default", Policy(), _C.CRASH, {}),
    ("native: a level bills every budget that matches", HARDWARE, _C.NODE, {"hardware": 1}),
    ("native: not for another owner", HARDWARE, _C.UNKNOWN, {}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "cls", "bills"), [r[1:] for r in BILLS], ids=[f"7 {r[0]}" for r in BILLS]
)
def test_a_level_bills(policy: Policy, cls: FaultClass, bills: dict[str, int]) -> None:
    job = running(policy)
    decision = job.see(sighting(cls))
    assert decision.bills == bills
    assert job.record.bills == bills
    assert job.used == bills


@pytest.mark.parametrize("cls", [_C.PREEMPTED, _C.MAINTENANCE, _C.PLANNED])
@pytest.mark.parametrize("policy", [MODELARTS, MINDCLUSTER], ids=["modelarts", "mindcluster"])
def test_what_nobody_is_to_blame_for_is_never_billed(policy: Policy, cls: FaultClass) -> None:
    job = running(policy)
    for _ in range(5):
        assert job.see(sighting(cls, node=job.state.slots[1].node)).bills == {}
        job.succeeds()
    assert job.used == {}


def crash(job: ScriptedJob) -> Level:
    level = job.see(sighting(_C.CRASH)).level
    if level is not Level.FAIL:
        job.succeeds()
    return level


def test_the_first_of_two_limits_that_is_reached_stops_the_job() -> None:
    job = running(mindcluster(fault_scheduling="force", fault_retry_times=5, backoff_limit=2))
    assert [crash(job) for _ in range(3)] == ["job", "job", "fail"]
    assert job.record.refused_by == "backoff_limit"


def test_hardware_in_between_uses_none_of_the_retries() -> None:
    job = running(mindcluster(fault_scheduling="force", fault_retry_times=2))
    assert crash(job) is Level.JOB
    job.see(sighting(_C.DEVICE_FATAL))
    job.succeeds()
    assert [crash(job), crash(job)] == ["job", "fail"]


def test_a_used_up_budget_refuses_the_level_and_leaves_a_record() -> None:
    job = running(MODELARTS)
    job.see(sighting(_C.NODE))
    job.succeeds()
    decision = job.see(sighting(_C.NODE, node="n2"))
    refused, done = job.records[-2:]
    assert decision.level is Level.JOB
    assert (refused.result, refused.refused_by, refused.bills) == ("quotaExceeded", "pod", {})
    assert (refused.n, done.n, refused.incident) == (2, 3, done.incident)
    assert responses.record(refused)["level"] == "pod"
    assert job.plan.key == "main/recovery-3-job-node-n2"


def test_a_level_that_is_refused_does_not_count_as_a_restart() -> None:
    job = running(modelarts(job_retry=0, unconditional=True))
    job.see(sighting(_C.CRASH))
    assert (job.record.result, views.status(job.state)["restarts"]) == ("quotaExceeded", 0)


# -- Reserved and given back --------------------------------------------------------------------

# How the level ended, what is left on the books of a budget that counts executed levels and of one
# that counts successes, and what the record says.
ENDS = (
    ("it succeeds", "success", 1, 1, "success"),
    ("it fails", "failed", 1, 0, "downgrade"),
    ("it gives way to a coarser one", "superseded", 1, 1, "terminated"),
    ("its outcome is lost", "lost", 1, 1, "terminated"),
)


@pytest.mark.parametrize(
    ("end", "executed", "succeeded", "reason"),
    [r[1:] for r in ENDS],
    ids=[f"7 {r[0]}" for r in ENDS],
)
def test_a_unit_is_kept_or_given_back(end: str, executed: int, succeeded: int, reason: str) -> None:
    job = running(MINDCLUSTER)
    job.see(sighting(_C.CRASH))
    assert job.used == {"fault_retry_times": 1, "backoff_limit": 1}
    number = job.record.n
    ended(job, end)
    first = next(r for r in job.records if r.n == number)
    assert first.result == reason
    assert first.bills.get("backoff_limit", 0) == executed
    assert first.bills.get("fault_retry_times", 0) == succeeded
    assert_books_agree(job)


def ended(job: ScriptedJob, end: str) -> None:
    match end:
        case "success":
            job.succeeds()
        case "failed":
            job.fails("place.none", at=Step.PLACE)
        case "superseded":
            job.gives_way(sighting(_C.NODE, node="n2"))
        case _:
            job.loses_outcome()


def assert_books_agree(job: ScriptedJob) -> None:
    billed: dict[str, int] = {}
    for record in job.records:
        for name, units in record.bills.items():
            billed[name] = billed.get(name, 0) + units
    assert billed == {name: units for name, units in job.used.items() if units}


def test_a_reserved_unit_counts_against_the_limit() -> None:
    job = running(mindcluster(fault_scheduling="force", pod_rescheduling=True, fault_retry_times=1))
    job.see(sighting(_C.CRASH))
    assert views.status(job.state)["budgets"]["fault_retry_times"] == {"limit": 1, "used": 1}


# -- Outcomes that were lost --------------------------------------------------------------------


def test_a_lost_recovery_that_had_done_its_work_is_a_success() -> None:
    job = running(MINDCLUSTER)
    job.see(sighting(_C.CRASH))
    job.loses_outcome()
    job.finds(started=True, generation=2)
    assert (job.record.result, job.record.generation_to) == ("success", 2)
    assert job.state.incident is None
    assert_books_agree(job)


def test_a_lost_recovery_that_had_not_runs_again_free_of_charge() -> None:
    job = running(MINDCLUSTER)
    first = job.see(sighting(_C.CRASH))
    job.loses_outcome()
    job.finds(started=False, generation=2)
    second = job.decisions[-1]
    assert (second.level, second.bills, second.new_incident) == (first.level, {}, False)
    assert [(r.n, r.result) for r in job.records] == [(1, "terminated"), (2, "recovering")]
    job.succeeds()
    assert job.used == {"fault_retry_times": 1, "backoff_limit": 1}
    assert_books_agree(job)


def test_a_second_try_that_fails_gives_back_what_the_first_was_billed() -> None:
    job = running(MINDCLUSTER)
    job.see(sighting(_C.CRASH))
    for generation in (2, 3):
        job.loses_outcome()
        job.finds(started=False, generation=generation)
    job.fails("place.none", at=Step.PLACE)
    assert job.used == {"fault_retry_times": 1, "backoff_limit": 2}
    assert_books_agree(job)


def test_a_lost_recovery_counts_once_in_series_and_without_progress() -> None:
    job = running(MODELARTS)
    job.see(sighting(_C.CRASH))
    job.loses_outcome()
    job.finds(started=False, generation=2)
    assert job.state.ledger.series == {"unconditional": 1}


# -- Operators ----------------------------------------------------------------------------------


def test_a_limit_may_be_changed_during_a_recovery() -> None:
    job = running(modelarts(job_retry=1, unconditional=True))
    job.see(sighting(_C.CRASH))
    job.command("set_budget", name="job", limit=2)
    job.succeeds()
    assert crash(job) is Level.JOB
    assert views.status(job.state)["budgets"]["job"] == {"limit": 2, "used": 2}


@pytest.mark.parametrize(("limit", "level"), [(0, Level.FAIL), (None, Level.JOB)])
def test_a_limit_may_be_lowered_below_what_is_used_or_lifted(
    limit: int | None, level: Level
) -> None:
    job = running(modelarts(job_retry=1, unconditional=True))
    crash(job)
    job.command("set_budget", name="job", limit=limit)
    assert crash(job) is level


def test_cerebras_counts_restarts_without_progress_of_every_owner() -> None:
    job = running(cerebras(max_num_restarts=3))
    levels = []
    for cls, node in ((_C.CRASH, "n0"), (_C.NODE, "n1"), (_C.DEVICE, "n2"), (_C.CRASH, "n3")):
        levels.append(job.see(sighting(cls, node=node)).level)
        if job.decisions[-1].is_executed:
            job.succeeds()
    assert levels == ["job", "job", "job", "fail"]
    assert "no progress after 3 restarts" in job.decisions[-1].reason


def test_cerebras_is_strict_also_after_a_reset() -> None:
    job = running(cerebras(max_num_restarts=3))
    crash(job)
    job.saves(10)
    assert [crash(job) for _ in range(4)] == ["job", "job", "job", "fail"]


def test_cerebras_takes_nothing_but_a_checkpoint_for_progress() -> None:
    job = running(cerebras(max_num_restarts=1), checkpoints_path=None)
    crash(job)
    job.report("refresh", step=500)
    assert crash(job) is Level.FAIL


def test_cerebras_without_restarts_fails_at_once() -> None:
    assert crash(running(cerebras(max_num_restarts=0))) is Level.FAIL
