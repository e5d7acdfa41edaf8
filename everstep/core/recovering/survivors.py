"""Whether ranks that hold can go on, by what they report of themselves. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from everstep.core.deciding.decision import Counts, Plan
from everstep.core.levels import ALL_STAY, KEEPING, Level
from everstep.core.recovering.placement import node_ranks, ranks_of
from everstep.core.slots import Slots, format_ranges
from everstep.core.world import RankPosition

HOLD_S_LEAST, HOLD_S_MOST, GAPS = 5.0, 10.0, 3
"""The time that a rank has to report where it is. In a collective operation it takes milliseconds; one that
computes arrives at the next operation, mostly within the time of a step."""


def hold_s(longest_gap_s: float) -> float:
    """The limit of a hold, where this was the longest time between two steps; 0: none was seen."""
    if not longest_gap_s:
        return HOLD_S_MOST
    return min(max(GAPS * longest_gap_s, HOLD_S_LEAST), HOLD_S_MOST)


def ranks_to_keep(
    level: Level, active: Slots, ended: Collection[int], processes_per_node: int
) -> Slots:
    """The ranks whose process a level keeps: none of the slots that end."""
    if level not in KEEPING:
        return ()
    by_slot = node_ranks(active)
    return tuple(
        rank
        for slot in active
        if slot not in ended
        for rank in ranks_of(slot, by_slot, processes_per_node)
    )


def why_not(
    plan: Plan, kept_ranks: Collection[int], positions: Collection[RankPosition]
) -> str | None:
    """Why these ranks cannot go on, if they cannot."""
    missing = [rank for rank in plan.keep if rank not in kept_ranks]
    if missing and plan.level in ALL_STAY:
        return (
            f"rank {format_ranges(missing)} did not answer within {plan.hold_s:g} s, or has ended"
        )
    if not kept_ranks:
        return "no rank is left that answers"
    newest = newest_step(kept_ranks, positions)
    if newest is None:
        return "no rank that is left has the state after a completed step"
    sources = [one for one in positions if one.rank in kept_ranks and one.completed == newest]
    if lost := _lost_states(plan, sources):
        return (
            f"no rank that is left has the state of rank {format_ranges(lost)} after step {newest}"
        )
    return None


def newest_step(kept_ranks: Collection[int], positions: Iterable[RankPosition]) -> int | None:
    """The newest completed step of which one of these ranks has the state."""
    steps = (
        one.completed for one in positions if one.rank in kept_ranks and one.completed is not None
    )
    return max(steps, default=None)


def _lost_states(plan: Plan, sources: Iterable[RankPosition]) -> list[int]:
    """The ranks whose state none of these can give."""
    all_ranks = set(range(len(plan.slots) * plan.phase.processes_per_node))
    return sorted(all_ranks.difference(*(one.copies or all_ranks for one in sources)))


def counts(
    plan: Plan, node_ranks: Mapping[int, int], kept_ranks: Collection[int]
) -> Mapping[int, Counts]:
    """The counts of each slot: where every rank goes on, no process starts."""
    going_on, per_node = frozenset(kept_ranks), plan.phase.processes_per_node
    if not going_on:
        return plan.slots
    whole = {
        slot for slot in node_ranks if going_on.issuperset(ranks_of(slot, node_ranks, per_node))
    }
    return {
        slot: replace(one, process_start=one.process_start - 1) if slot in whole else one
        for slot, one in plan.slots.items()
    }
