"""Ranks that step slower than their peers. Pure.

Ranks that wait for each other at every step all have the pace of the slowest. So this shows only in training
without a collective in each step, in evaluation, or where each rank prepares its own part of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high
from typing import NamedTuple

from everstep.core.world import PodView

FACTOR = 2
STEPS_LEAST = 6
"""Peers with fewer steps in that time are not compared: the number of so few is chance."""
NAMED_MOST = 4


class SlowRank(NamedTuple):
    """A rank that falls behind its peers, and what both did in the same time."""

    rank: int
    slot: int
    node: str
    steps: int
    usual: int

    def text(self, pace_s: float) -> str:
        return (
            f"rank {self.rank} on {self.node} made {self.steps} steps in {pace_s:g} s; "
            f"its peers made {self.usual}"
        )


def slow_ranks(pods: Sequence[PodView]) -> tuple[SlowRank, ...]:
    """The slowest first, at most `NAMED_MOST`. None unless all ranks show their steps.

    A rank that makes no step at all is the matter of the hang rules.
    """
    if not pods or any(pod.recent_steps is None for pod in pods):
        return ()
    counts = [steps for pod in pods for _, steps in pod.recent_steps or ()]
    if not counts or min(counts) * FACTOR > max(counts):
        return ()
    usual = median_high(counts)
    if usual < STEPS_LEAST:
        return ()
    slow = (
        SlowRank(rank=rank, slot=pod.slot, node=pod.node, steps=steps, usual=usual)
        for pod in pods
        for rank, steps in pod.recent_steps or ()
        if 0 < steps * FACTOR <= usual
    )
    return tuple(sorted(slow, key=lambda each: (each.steps, each.rank))[:NAMED_MOST])
