"""A course of chaos as data: what happens, when, to which job and for how long. Pure: one seed, one plan."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

JOBS = ("first", "second")
GAPS_S = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 8.0)
"""Seconds between two events: at once, in the middle of the answer to the one before, or after it."""

LASTS_S = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Of what goes away and comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that is done. Where several can be its victim, `share`, from 0 to below 1, says which one."""

    number: int
    at_s: float
    action: str
    job: str
    share: float
    lasts_s: float

    def __str__(self) -> str:
        return (
            f"{self.number:3} {self.at_s:6.2f} s  {self.action} ({self.job}, {self.share:.2f}, "
            f"{self.lasts_s:g} s)"
        )


def planned(seed: str, actions: Sequence[str], *, seconds: float) -> tuple[Event, ...]:
    """Events for so many seconds; each action comes before any comes twice."""
    chance = random.Random(seed)
    events: list[Event] = []
    deck: list[str] = []
    at_s = 0.0
    while True:
        at_s += chance.choice(GAPS_S)
        if at_s >= seconds:
            return tuple(events)
        if not deck:
            deck = chance.sample(sorted(actions), len(actions))
        events.append(
            Event(
                number=len(events) + 1,
                at_s=round(at_s, 2),
                action=deck.pop(),
                job=chance.choice(JOBS),
                share=chance.randrange(100) / 100,
                lasts_s=chance.choice(LASTS_S),
            )
        )


def part(plan: Sequence[Event], numbers: Collection[int]) -> tuple[Event, ...]:
    """The events of these numbers, as close to each other as they are, and as any two may be at most."""
    events = [event for event in plan if event.number in numbers]
    gaps = [0.0, *(later.at_s - earlier.at_s for earlier, later in pairwise(events))]
    moments, at_s = [], 0.0
    for gap in gaps:
        at_s = round(at_s + min(gap, max(GAPS_S)), 2)
        moments.append(at_s)
    return tuple(replace(event, at_s=at) for event, at in zip(events, moments, strict=False))
