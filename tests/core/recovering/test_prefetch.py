"""What tries beside the training say of numbers of nodes, and which ones are tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle import happenings, views
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.core.loop import operators
from everstep.core.recovering.plans import launch_plan, prefetch_order
from everstep.core.spec import Limits, Match, Policy, Prefetch, Rule
from tests.support.builders import ScriptedJob, fact, job_spec, sighting


def trains(policy: Policy | None = None, *, least: int = 1) -> ScriptedJob:
    what = Prefetch(command=("compile",))
    return ScriptedJob(spec=job_spec(policy, nodes=4, nodes_min=least, prefetch=what)).launches()


def failed(nodes: int, phase: str = "main", **where: Any) -> Fact:
    message = f"prefetch for {nodes} nodes: exit code 1"
    details: dict[str, Any] = {"slot": 0, "node": "n0", "message": message, **where}
    return fact("prefetch.failed", nodes=nodes, phase=phase, **details)


def test_a_number_that_failed_is_noted_and_not_gone_on_with() -> None:
    job = trains()
    decision = job.see(failed(3))
    assert (decision.level, job.state.ledger.bad_sizes) == (Level.NOTE, (3,))
    places = launch_plan(job.state).places
    assert places is not None
    assert places.bad == (3,)
    assert views.status(job.state)["sizes"] == {"failed": [3], "prefetched": []}


def test_it_counts_whatever_else_is_seen_with_it() -> None:
    job = trains()
    decision = job.see(failed(3), sighting(FaultClass.CRASH))
    assert decision.fault.cls is FaultClass.CRASH
    assert job.state.ledger.bad_sizes == (3,)


def test_it_counts_when_it_was_seen_in_a_recovery() -> None:
    job = trains()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds(facts=(failed(3),))
    assert job.state.ledger.bad_sizes == (3,)


def test_another_phase_learns_nothing_by_it() -> None:
    job = trains()
    job.see(failed(3, phase="warmup"))
    assert job.state.ledger.bad_sizes == ()


def test_a_rule_about_exits_of_ranks_is_not_meant() -> None:
    job = trains(Policy(rules=(Rule(match=Match(exit_code=(1,)), action="fail"),)))
    assert job.see(failed(3)).level is Level.NOTE


def changed(job: ScriptedJob, **changes: Any) -> ScriptedJob:
    """After a hot update."""
    (phase,) = job.state.spec.phases
    spec = replace(job.state.spec, phases=(replace(phase, **changes),))
    job.state = operators.respecified(job.state, spec)
    return job


def prefetched_numbers(job: ScriptedJob) -> dict[str, list[int]]:
    sizes: dict[str, list[int]] = views.status(job.state)["sizes"]
    return sizes


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ("train", "--micro-batch", "1")},
        {"env": {"MICRO_BATCH": "1"}},
        {"files": {"params.yaml": {"micro_batch_size": 1}}},
        {"prefetch": Prefetch(command=("compile", "again"))},
        {"processes_per_node": 4},
    ],
    ids=str,
)
def test_of_another_program_nobody_knows_which_numbers_work(changes: dict[str, Any]) -> None:
    job = trains()
    job.see(failed(3), fact("prefetch.done", nodes=2, phase="main"))
    changed(job, **changes)
    assert prefetched_numbers(job) == {"failed": [], "prefetched": []}
    job.see(failed(2, generation=job.state.generation))
    assert prefetched_numbers(job)["failed"] == [], (
        "the run before the change still speaks of itself"
    )
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    job.see(failed(2, generation=job.state.generation))
    assert prefetched_numbers(job)["failed"] == [2]


@pytest.mark.parametrize(
    "changes",
    [{"limits": Limits(spare_s=7.0)}, {"nodes": 3}, {"policy": Policy(rollbacks=1)}],
    ids=str,
)
def test_of_the_same_program_it_is_known_still(changes: dict[str, Any]) -> None:
    job = trains()
    job.see(failed(3))
    assert changed(job, **changes).state.ledger.bad_sizes == (3,)


@pytest.mark.parametrize(
    ("nodes", "least", "numbers", "tried"),
    [
        (4, 1, (), (3, 2)),
        (4, 3, (), (3,)),
        (4, 4, (), ()),
        (2, 1, (), (1,)),
        (1, 1, (), ()),
        (4, 1, (3,), (2,)),
        (3, 1, (2, 1), ()),
    ],
)
def test_the_next_two_smaller_numbers_are_tried_once(
    nodes: int, least: int, numbers: tuple[int, ...], tried: tuple[int, ...]
) -> None:
    plan = replace(launch_plan(trains(least=least).state), tried=numbers)
    order = prefetch_order(plan, nodes)
    assert order is not None
    assert order.nodes == tried


def test_one_that_works_is_not_tried_again() -> None:
    job = trains()
    job.see(fact("prefetch.done", nodes=3, phase="main"))
    order = prefetch_order(launch_plan(job.state), 4)
    assert order is not None
    assert (order.nodes, job.state.ledger.bad_sizes) == ((2,), ())


@pytest.mark.parametrize(
    ("kind", "level"), [("prefetch.done", "Info"), ("prefetch.failed", "Warning")]
)
def test_only_a_prefetch_that_failed_is_a_warning(kind: str, level: str) -> None:
    job = trains()
    job.see(fact(kind, nodes=3, phase="main"))
    (event,) = [e for e in happenings.events(job.chronicle) if e["message"].startswith("noted")]
    assert event["level"] == level
