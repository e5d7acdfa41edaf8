"""When a job that goes on with fewer nodes may have the others back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everstep.core.facts import SCALE_OUT, Fact
from everstep.core.levels import Level
from everstep.core.recovering.placement import choose
from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.world import NodeView, Observation

IN_VAIN_S, IN_VAIN_S_MOST = 300.0, 3_600.0
"""A quota or another job may keep the job from a node that looks free, and each try costs a restart."""

PLACE_S = 10.0
"""A slot that comes back has so long to get a node: a queue admits its pod first."""


def wait_s(grown_in_vain: int) -> float:
    """The time until the next try, doubled with each one that was in vain."""
    if not grown_in_vain:
        return 0.0
    doublings = min(grown_in_vain - 1, 10)  # a job may try for months: a power has a limit
    return min(IN_VAIN_S * float(1 << doublings), IN_VAIN_S_MOST)


def may_grow(order: WatchOrder, observation: Observation) -> bool:
    """Whether a slot is missing and a run of this size saved a checkpoint: growing then loses little."""
    if order.room_for is None or observation.checkpoint is None:
        return False
    if order.grows_from is not None and observation.now < order.grows_from:
        return False
    return order.grows_after is None or observation.checkpoint.is_newer(order.grows_after)


def _sentence(nodes: tuple[str, ...]) -> str:
    if len(nodes) == 1:
        return f"{nodes[0]} has room for a slot that was scaled away"
    return f"{', '.join(nodes)} have room for {len(nodes)} slots that were scaled away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Nodes that could take slots which were scaled away."""

    fact: Fact
    is_for_all: bool  # as many as the document wants


def room(order: WatchOrder, observation: Observation, nodes: Iterable[NodeView]) -> Room | None:
    """The room for slots that were scaled away, if it is enough for the next number of nodes."""
    assert order.room_for is not None
    active = frozenset(order.active)
    busy = {pod.node for pod in observation.pods if pod.slot in active}
    slots = choose(range(order.grows_most), nodes, order.room_for, busy=busy)
    if len(slots) < order.grows_by:
        return None
    fact = Fact(
        id=f"watch/scale.out/{order.generation}",
        kind=SCALE_OUT,
        at=observation.now,
        message=_sentence(tuple(slots.values())),
        details={"level": str(Level.ELASTIC)},
    )
    return Room(fact=fact, is_for_all=len(slots) == order.grows_most)
