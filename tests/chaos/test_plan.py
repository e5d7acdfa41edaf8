"""Plans: one seed is one plan, and each action has its turn."""

from __future__ import annotations

from collections import Counter

from tests.chaos.actions import ON_MACHINE as ACTIONS
from tests.chaos.plan import JOBS, planned


def test_one_seed_is_one_plan() -> None:
    assert planned("7", list(ACTIONS), seconds=60) == planned("7", [*ACTIONS][::-1], seconds=60)
    assert planned("7", list(ACTIONS), seconds=60) != planned("8", list(ACTIONS), seconds=60)


def test_a_shorter_plan_begins_as_the_longer_one() -> None:
    """So a course can be cut after the event that showed a defect."""
    longer = planned("7", list(ACTIONS), seconds=60)
    assert longer[: len(planned("7", list(ACTIONS), seconds=20))] == planned(
        "7", list(ACTIONS), seconds=20
    )


def test_each_action_comes_before_any_comes_twice() -> None:
    plan = planned("7", list(ACTIONS), seconds=600)
    first = Counter(event.action for event in plan[: len(ACTIONS)])
    assert first == Counter(dict.fromkeys(ACTIONS, 1))
    assert {event.job for event in plan} == set(JOBS)


def test_events_are_in_order_and_in_time() -> None:
    plan = planned("7", list(ACTIONS), seconds=60)
    times = [event.at_s for event in plan]
    assert times == sorted(times)
    assert all(0 <= at_s < 60 for at_s in times)
    assert [event.number for event in plan] == list(range(1, len(plan) + 1))
