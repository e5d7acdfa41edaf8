"""Once numbers went wrong, the next runs look for the cause, and end when there is none to be found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.core.deciding.decision import Decision
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.core.recovering.plans import launch_plan
from everstep.core.spec import Policy
from everstep.dialects.cerebras.policy import cerebras
from tests.support.builders import ScriptedJob, fact, running, sighting

_C = FaultClass
POLICY = cerebras(max_num_restarts=100, save_every=4)
NAN = "cerebras.appliance.errors.ApplianceNanError: loss"
DEADLOCK = "cerebras.appliance.errors.ApplianceDeadlockError: stalled"
OTHER = "RuntimeError: lost"
CHECKS = "EVERSTEP_CHECK_NUMBERS"


def end(exception: str) -> Fact:
    return fact("process.exit", slot=0, rank=0, exit_code=1, exception=exception)


def job_with_checks(policy: Policy = POLICY, **spec: Any) -> ScriptedJob:
    job = running(policy, **spec)
    job.saves(4)
    return job


def after(job: ScriptedJob, *exceptions: str) -> list[str | None]:
    """How many steps each next run is to check its numbers for; None: it does not."""
    checks = []
    for exception in exceptions:
        job.see(end(exception))
        checks.append(job.plan.phase.env.get(CHECKS))
        job.succeeds()
    return checks


def last(job: ScriptedJob) -> Decision:
    return job.decisions[-1]


def test_only_the_job_switches_the_checks_on() -> None:
    """A document's own value has no effect, as that of any variable of the product; it may be no number."""
    job = job_with_checks(env={CHECKS: "yes", "SEED": "1"})
    job.see(sighting(FaultClass.CRASH))
    assert job.plan.phase.env == {"SEED": "1"}


def test_after_wrong_numbers_the_next_run_checks_them() -> None:
    job = job_with_checks()
    assert after(job, OTHER, NAN) == [None, "4"]
    assert "the next run checks its numbers for 4 steps" in last(job).reason
    assert last(job).level is Level.JOB


def test_until_the_check_is_over_every_run_checks_them() -> None:
    assert after(job_with_checks(), NAN, OTHER, NAN) == ["4", "4", "4"]


def test_a_check_that_got_stuck_and_found_a_node_is_over() -> None:
    job = job_with_checks()
    after(job, NAN)
    job.see(end(DEADLOCK), sighting(_C.NODE, node="n1"))
    assert (last(job).fault.cls, last(job).fault.nodes) == (_C.NODE, ("n1",))
    assert "the check found where" in last(job).reason
    assert CHECKS not in job.plan.phase.env


def test_a_check_that_got_stuck_and_found_nobody_is_made_once_more() -> None:
    job = job_with_checks()
    assert after(job, NAN, DEADLOCK) == ["4", "4"]
    job.see(end(DEADLOCK))
    assert last(job).level is Level.FAIL
    assert "no node is the cause of it, but the code or the data" in last(job).reason
    assert "because no other level is left" not in last(job).reason


def test_another_failure_between_two_that_got_stuck_begins_anew() -> None:
    assert after(job_with_checks(), NAN, DEADLOCK, OTHER, DEADLOCK) == ["4"] * 4


def test_what_got_stuck_without_a_check_is_only_restarted() -> None:
    assert after(job_with_checks(), DEADLOCK, DEADLOCK, DEADLOCK) == [None] * 3


def test_a_check_that_ends_well_is_followed_by_a_run_without_it() -> None:
    job = job_with_checks()
    after(job, NAN, OTHER)
    job.saves(8)
    assert job.state.ledger.no_progress == 0
    job.report("done", checkpoint=8)
    assert (last(job).fault.cls, last(job).level) == (_C.PLANNED, Level.JOB)
    assert CHECKS not in job.plan.phase.env
    assert job.state.ledger.no_progress == 0
    job.succeeds()
    job.report("done", checkpoint=20)
    assert job.state.ending == "Completed"


def test_a_check_that_ends_at_the_last_step_ends_the_phase() -> None:
    job = job_with_checks(last_step=8)
    after(job, NAN)
    job.report("done", checkpoint=8)
    assert job.state.ending == "Completed"


def test_a_check_that_ended_is_answered_once_however_often_its_outcome_is_lost() -> None:
    job = job_with_checks()
    after(job, NAN)
    job.report("done", checkpoint=8)
    job.loses_outcome()
    job.finds(started=False, generation=job.state.generation)
    assert CHECKS not in job.plan.phase.env
    assert job.state.ledger.restarts == 2


@pytest.mark.parametrize("cls", [_C.PREEMPTED, _C.PLANNED])
def test_what_is_no_failure_leaves_the_check_as_it_is(cls: FaultClass) -> None:
    job = job_with_checks()
    after(job, NAN)
    job.see(sighting(cls))
    assert job.plan.phase.env.get(CHECKS) == "4"
    job.succeeds()
    assert after(job, DEADLOCK) == ["4"]


def test_whatever_plan_starts_a_run_has_it_check_its_numbers() -> None:
    job = job_with_checks()
    assert after(job, NAN) == ["4"]
    assert launch_plan(job.state).phase.env.get(CHECKS) == "4"
    job.command("pause")
    job.interrupted()
    job.succeeds()
    job.command("resume")
    job.interrupted()
    assert (job.plan.level, job.plan.phase.env.get(CHECKS)) == (Level.IN_PLACE, "4")


def test_checks_count_as_restarts_without_progress() -> None:
    job = job_with_checks(replace(POLICY, no_progress_restarts=2))
    assert after(job, NAN, NAN) == ["4", "4"]
    assert job.see(end(NAN)).level is Level.FAIL
    assert "no progress after 2 restarts" in last(job).reason


def test_other_policies_check_nothing() -> None:
    job = running(Policy())
    job.see(end(NAN))
    assert CHECKS not in job.plan.phase.env
