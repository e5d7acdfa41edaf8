"""A Recovery did its work, all of it or some, and nobody was told: what the job makes of the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.core.levels import FaultClass, Level, Step
from everstep.core.loop.next_actions import Look, RunPlan, WatchAction
from everstep.core.spec import Budget, Match, Policy, Rule
from tests.support.builders import Told, fact, running, sighting

POLICY = Policy(
    budgets=(Budget(name="any", limit=9),),
    rules=(Rule(match=Match(exit_code=(7,)), action="resize"),),
)
ALL, THREE, TWO = (0, 1, 2, 3), (0, 1, 3), (0, 1)


def in_place() -> Told:
    told = running(POLICY, nodes_min=2)
    told.see(sighting(FaultClass.CRASH))
    assert told.plan.level is Level.IN_PLACE
    return told


def shrinking() -> Told:
    """A node of four is lost, and there is no spare."""
    told = running(POLICY, nodes_min=2)
    told.see(fact("node.down", node="n2"))
    told.fails("place.none", at=Step.PLACE)
    assert told.plan.level is Level.ELASTIC
    return told


def resizing() -> Told:
    """Four do not work."""
    told = running(POLICY, nodes_min=2)
    told.see(fact("process.exit", slot=0, rank=0, exit_code=7))
    assert told.plan.level is Level.ELASTIC
    return told


def growing() -> Told:
    told = shrinking()
    told.succeeds(living=THREE)
    told.see(fact("scale.out", level="elastic"))
    assert told.plan.level is Level.ELASTIC
    return told


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
    recovering: Callable[[], Told], there: tuple[int, ...]
) -> None:
    told = recovering()
    before = (told.used, told.state.ledger.restarts, len(told.decisions), len(told.records))
    told.loses_outcome()
    told.finds(started=True, generation=told.state.generation + 1, there=there)
    assert isinstance(told.action, WatchAction)
    assert (told.state.living, told.record.result) == (there, "success")
    after = (told.used, told.state.ledger.restarts, len(told.decisions), len(told.records))
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
    recovering: Callable[[], Told], there: tuple[int, ...], started: bool
) -> None:
    told = recovering()
    before = (told.used, told.state.ledger.restarts, told.plan.level, told.state.living)
    told.loses_outcome()
    told.finds(started=started, generation=told.state.generation + 1, there=there)
    assert isinstance(told.action, RunPlan)
    after = (told.used, told.state.ledger.restarts, told.plan.level, told.state.living)
    assert after == before
    told.succeeds()
    assert [record.result for record in told.records[-2:]] == ["terminated", "success"]


def test_a_job_that_is_to_have_fewer_nodes_at_its_next_restart_still_has_those_that_run() -> None:
    told = in_place()
    (phase,) = told.state.spec.phases
    fewer = replace(told.state.spec, phases=(replace(phase, nodes=2),))
    told.state = replace(told.state, spec=fewer)
    told.loses_outcome()
    look = told.action
    assert isinstance(look, Look)
    assert look.order.living == ALL
    told.finds(started=True, generation=told.state.generation + 1)
    assert isinstance(told.action, WatchAction)
    assert (told.state.living, told.record.result) == (ALL, "success")
