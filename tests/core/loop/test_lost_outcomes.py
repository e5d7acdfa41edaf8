"""A Recovery did all or some of its work and its outcome was lost: what the job makes of the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.core.levels import FaultClass, Level, Step
from everstep.core.loop.next_actions import Observe, RunPlan, WatchAction
from everstep.core.spec import Budget, Match, Policy, Rule
from tests.support.builders import ScriptedJob, fact, running, sighting

POLICY = Policy(
    budgets=(Budget(name="any", limit=9),),
    rules=(Rule(match=Match(exit_code=(7,)), action="resize"),),
)
ALL, THREE, TWO = (0, 1, 2, 3), (0, 1, 3), (0, 1)


def in_place() -> ScriptedJob:
    job = running(POLICY, nodes_min=2)
    job.see(sighting(FaultClass.CRASH))
    assert job.plan.level is Level.IN_PLACE
    return job


def shrinking() -> ScriptedJob:
    """A node of four is lost, and there is no spare."""
    job = running(POLICY, nodes_min=2)
    job.see(fact("node.down", node="n2"))
    job.fails("place.none", at=Step.PLACE)
    assert job.plan.level is Level.ELASTIC
    return job


def resizing() -> ScriptedJob:
    """Four do not work."""
    job = running(POLICY, nodes_min=2)
    job.see(fact("process.exit", slot=0, rank=0, exit_code=7))
    assert job.plan.level is Level.ELASTIC
    return job


def growing() -> ScriptedJob:
    job = shrinking()
    job.succeeds(active=THREE)
    job.see(fact("scale.out", level="elastic"))
    assert job.plan.level is Level.ELASTIC
    return job


def test_a_record_names_the_place_of_a_slot_that_was_scaled_away() -> None:
    job = shrinking()
    job.succeeds(active=THREE)
    (lost,) = set(ALL) - set(THREE)
    assert (job.record.before[lost], job.record.after[lost]) == (f"n{lost}", "")


@pytest.mark.parametrize(
    ("recovering", "there"),
    [
        (in_place, ALL),
        (shrinking, THREE),
        (shrinking, TWO),
        (resizing, (0, 1, 2)),
        (growing, ALL),
    ],
)
def test_whoever_runs_the_new_generation_is_the_job_and_nothing_is_done_or_billed_twice(
    recovering: Callable[[], ScriptedJob], there: tuple[int, ...]
) -> None:
    job = recovering()
    before = (job.used, job.state.ledger.restarts, len(job.decisions), len(job.records))
    job.loses_outcome()
    job.finds(started=True, generation=job.state.generation + 1, there=there)
    assert isinstance(job.action, WatchAction)
    assert (job.state.active, job.record.result) == (there, "success")
    after = (job.used, job.state.ledger.restarts, len(job.decisions), len(job.records))
    assert after == before


@pytest.mark.parametrize(
    ("recovering", "there", "started"),
    [
        pytest.param(in_place, THREE, True, id="one of four is missing"),
        pytest.param(shrinking, THREE, False, id="placed and not started"),
        pytest.param(shrinking, (0,), True, id="fewer than the least"),
        pytest.param(resizing, ALL, True, id="a number that does not work"),
        pytest.param(growing, ALL, False, id="grown and not started"),
    ],
)
def test_what_was_done_by_half_is_done_once_more_and_billed_once(
    recovering: Callable[[], ScriptedJob], there: tuple[int, ...], started: bool
) -> None:
    job = recovering()
    before = (job.used, job.state.ledger.restarts, job.plan.level, job.state.active)
    job.loses_outcome()
    job.finds(started=started, generation=job.state.generation + 1, there=there)
    assert isinstance(job.action, RunPlan)
    after = (job.used, job.state.ledger.restarts, job.plan.level, job.state.active)
    assert after == before
    job.succeeds()
    assert [record.result for record in job.records[-2:]] == ["terminated", "success"]


def test_a_job_that_is_to_have_fewer_nodes_at_its_next_restart_still_has_those_that_run() -> None:
    job = in_place()
    (phase,) = job.state.spec.phases
    fewer = replace(job.state.spec, phases=(replace(phase, nodes=2),))
    job.state = replace(job.state, spec=fewer)
    job.loses_outcome()
    look = job.action
    assert isinstance(look, Observe)
    assert look.order.active == ALL
    job.finds(started=True, generation=job.state.generation + 1)
    assert isinstance(job.action, WatchAction)
    assert (job.state.active, job.record.result) == (ALL, "success")


@pytest.mark.parametrize(
    ("cls", "changes"),
    [(FaultClass.MAINTENANCE, {}), (FaultClass.PRECHECK, {"details": {"hardware": False}})],
)
def test_a_node_that_was_left_unisolated_is_not_used_again(
    cls: FaultClass, changes: dict[str, object]
) -> None:
    job = running(POLICY)
    job.see(sighting(cls, **changes))
    assert (job.plan.remedy.avoid, job.plan.remedy.isolate) == (("n1",), ())
    job.loses_outcome()
    job.finds(started=True, generation=job.state.generation + 1)
    assert isinstance(job.action, WatchAction)
    assert job.state.avoid == ("n1",)
