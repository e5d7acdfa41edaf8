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
from tests.support.builders import Told, fact, running, sighting

_C = FaultClass
POLICY = cerebras(max_num_restarts=100, save_every=4)
NAN = "cerebras.appliance.errors.ApplianceNanError: loss"
DEADLOCK = "cerebras.appliance.errors.ApplianceDeadlockError: stalled"
OTHER = "RuntimeError: lost"
CHECKS = "EVERSTEP_CHECK_NUMBERS"


def end(exception: str) -> Fact:
    return fact("process.exit", slot=0, rank=0, exit_code=1, exception=exception)


def job(policy: Policy = POLICY, **said: Any) -> Told:
    told = running(policy, **said)
    told.saves(4)
    return told


def after(told: Told, *exceptions: str) -> list[str | None]:
    """How many steps each next run is to check its numbers for; None: it does not."""
    checks = []
    for exception in exceptions:
        told.see(end(exception))
        checks.append(told.plan.phase.env.get(CHECKS))
        told.succeeds()
    return checks


def last(told: Told) -> Decision:
    return told.decisions[-1]


def test_after_wrong_numbers_the_next_run_checks_them() -> None:
    told = job()
    assert after(told, OTHER, NAN) == [None, "4"]
    assert "the next run checks its numbers for 4 steps" in last(told).reason
    assert last(told).level is Level.JOB


def test_until_the_check_is_over_every_run_checks_them() -> None:
    assert after(job(), NAN, OTHER, NAN) == ["4", "4", "4"]


def test_a_check_that_got_stuck_and_found_a_node_is_over() -> None:
    told = job()
    after(told, NAN)
    told.see(end(DEADLOCK), sighting(_C.NODE, node="n1"))
    assert (last(told).fault.cls, last(told).fault.nodes) == (_C.NODE, ("n1",))
    assert "the check found where" in last(told).reason
    assert CHECKS not in told.plan.phase.env


def test_a_check_that_got_stuck_and_found_nobody_is_made_once_more() -> None:
    told = job()
    assert after(told, NAN, DEADLOCK) == ["4", "4"]
    told.see(end(DEADLOCK))
    assert last(told).level is Level.FAIL
    assert "no node is the cause of it, but the code or the data" in last(told).reason
    assert "because no other level is left" not in last(told).reason


def test_another_failure_between_two_that_got_stuck_begins_anew() -> None:
    assert after(job(), NAN, DEADLOCK, OTHER, DEADLOCK) == ["4"] * 4


def test_what_got_stuck_without_a_check_is_only_restarted() -> None:
    assert after(job(), DEADLOCK, DEADLOCK, DEADLOCK) == [None] * 3


def test_a_check_that_ends_well_is_followed_by_a_run_without_it() -> None:
    told = job()
    after(told, NAN, OTHER)
    told.saves(8)
    assert told.state.ledger.no_progress == 0
    told.report("done", checkpoint=8)
    assert (last(told).fault.cls, last(told).level) == (_C.PLANNED, Level.JOB)
    assert CHECKS not in told.plan.phase.env
    assert told.state.ledger.no_progress == 0
    told.succeeds()
    told.report("done", checkpoint=20)
    assert told.state.ending == "Completed"


def test_a_check_that_ends_at_the_last_step_ends_the_phase() -> None:
    told = job(last_step=8)
    after(told, NAN)
    told.report("done", checkpoint=8)
    assert told.state.ending == "Completed"


def test_a_check_that_ended_is_answered_once_however_often_its_outcome_is_lost() -> None:
    told = job()
    after(told, NAN)
    told.report("done", checkpoint=8)
    told.loses_outcome()
    told.finds(started=False, generation=told.state.generation)
    assert CHECKS not in told.plan.phase.env
    assert told.state.ledger.restarts == 2


@pytest.mark.parametrize("cls", [_C.PREEMPTED, _C.PLANNED])
def test_what_is_no_failure_leaves_the_check_as_it_is(cls: FaultClass) -> None:
    told = job()
    after(told, NAN)
    told.see(sighting(cls))
    assert told.plan.phase.env.get(CHECKS) == "4"
    told.succeeds()
    assert after(told, DEADLOCK) == ["4"]


def test_whatever_plan_starts_a_run_has_it_check_its_numbers() -> None:
    told = job()
    assert after(told, NAN) == ["4"]
    assert launch_plan(told.state).phase.env.get(CHECKS) == "4"
    told.command("pause")
    told.interrupted()
    told.succeeds()
    told.command("resume")
    told.interrupted()
    assert (told.plan.level, told.plan.phase.env.get(CHECKS)) == (Level.IN_PLACE, "4")


def test_checks_count_as_restarts_without_progress() -> None:
    told = job(replace(POLICY, no_progress_restarts=2))
    assert after(told, NAN, NAN) == ["4", "4"]
    assert told.see(end(NAN)).level is Level.FAIL
    assert "no progress after 2 restarts" in last(told).reason


def test_other_policies_check_nothing() -> None:
    told = running(Policy())
    told.see(end(NAN))
    assert CHECKS not in told.plan.phase.env
