"""The smallest part of a course is found, and found again by its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.actions import ON_MACHINE
from tests.chaos.plan import GAPS_S, Event, part, planned
from tests.chaos.shrinking import smallest

PLAN = planned("7", list(ON_MACHINE), seconds=60)


class Course:
    """A course that breaks a rule where all of some events are in it."""

    def __init__(self, *guilty: int) -> None:
        self.guilty = {*guilty}
        self.trials = 0

    async def shows(self, events: Sequence[Event]) -> bool:
        self.trials += 1
        return self.guilty <= {event.number for event in events}


@pytest.mark.parametrize("guilty", [(1,), (len(PLAN),), (3, 4), (2, 20), (1, 15, len(PLAN))])
async def test_exactly_the_guilty_events_are_left(guilty: Sequence[int]) -> None:
    course = Course(*guilty)
    left = await smallest(PLAN, course.shows, has_time=lambda: True)
    assert [event.number for event in left] == [*guilty]
    assert course.trials < 2 * len(PLAN)


async def test_what_does_not_show_again_stays_whole() -> None:
    left = await smallest(PLAN, Course(10_000).shows, has_time=lambda: True)
    assert left == PLAN


async def test_no_trial_begins_without_time() -> None:
    course = Course(3)
    left = await smallest(PLAN, course.shows, has_time=lambda: course.trials < 3)
    assert course.trials == 3
    assert 3 in {event.number for event in left}
    assert len(left) < len(PLAN)


def test_a_part_keeps_the_gaps_of_its_events_and_waits_for_none_that_is_left_out() -> None:
    numbers = [4, 5, 20]
    events = part(PLAN, numbers)
    assert [event.number for event in events] == numbers
    assert events[0].at_s <= max(GAPS_S)
    assert events[1].at_s - events[0].at_s == pytest.approx(PLAN[4].at_s - PLAN[3].at_s)
    assert events[2].at_s - events[1].at_s == pytest.approx(max(GAPS_S))


def test_a_part_of_a_part_is_the_part_of_the_whole() -> None:
    """So a course that was shrunken several times is played again by the numbers of its events."""
    assert part(part(PLAN, range(3, 21)), [4, 5, 20]) == part(PLAN, [4, 5, 20])
