"""The search for the smallest part of a course that breaks the same rule. Clock and cluster are arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.plan import Event

Shows = Callable[[Sequence[Event]], Awaitable[bool]]
"""Plays a part of the course; whether it broke the rule again."""


async def smallest(
    plan: Sequence[Event], shows: Shows, *, has_time: Callable[[], bool]
) -> Sequence[Event]:
    """The smallest part found while there is time: by halves first, then by ever smaller pieces left out."""
    pieces = 2
    while len(plan) > 1:
        for first in range(0, len(plan), _size(plan, pieces)):
            if not has_time():
                return plan
            rest = [*plan[:first], *plan[first + _size(plan, pieces) :]]
            if await shows(rest):
                plan, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if pieces >= len(plan):
                return plan
            pieces = min(2 * pieces, len(plan))
    return plan


def _size(plan: Sequence[Event], pieces: int) -> int:
    return -(-len(plan) // pieces)
