"""Which agents of a job keep copies of each other's snapshots. Pure.

A copy serves when the node of its rank is gone, so it is held on another one: in the pod that follows in the
order of the node ranks, as a ring. Each agent then holds what one other agent sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from everstep.backends.agents.commands.ranks import MemoryPeers
from everstep.backends.agents.pod import Pod
from everstep.core.recovering.placement import ranks_of
from everstep.core.world import StartOrder
from everstep.protocol import wire

Address = Callable[[Pod], str | None]


def memory_peers(
    order: StartOrder, slot: int, pods: Mapping[int, Pod], *, address: Address
) -> MemoryPeers:
    """The neighbour that gets copies from this slot, and the copies that its ranks resume from."""
    to = neighbour(order, slot, pods)
    return MemoryPeers(
        neighbour=None if to is None else _listening(to, address),
        fetch=_fetch(order, slot, pods, address),
        leads=_leads(order, slot, pods),
    )


def _leads(order: StartOrder, slot: int, pods: Mapping[int, Pod]) -> bool:
    """Whether it is the first pod that is a neighbour itself: then what each reports comes round to it."""
    first = min(order.slots, key=lambda one: order.slots[one].node_rank)
    to = neighbour(order, first, pods) if first in pods else None
    return to is not None and to.slot == slot


def neighbour(order: StartOrder, slot: int, pods: Mapping[int, Pod]) -> Pod | None:
    """The next pod on another node; None: all pods are on one."""
    ring = sorted(order.slots, key=lambda one: order.slots[one].node_rank)
    at = ring.index(slot)
    node = pods[slot].node
    later = (pods.get(one) for one in (*ring[at + 1 :], *ring[:at]))
    return next((pod for pod in later if pod is not None and pod.node != node), None)


def _fetch(
    order: StartOrder, slot: int, pods: Mapping[int, Pod], address: Address
) -> list[wire.Fetch]:
    if order.snapshot is None:
        return []
    node_rank = order.slots[slot].node_rank
    ranks = ranks_of(slot, {slot: node_rank}, order.processes_per_node)
    held = {one.rank: pods.get(one.slot) for one in order.snapshot.copies if one.rank in ranks}
    listening = {rank: _listening(pod, address) for rank, pod in held.items() if pod is not None}
    return [
        {"rank": rank, "held_by": agent} for rank, agent in listening.items() if agent is not None
    ]


def _listening(pod: Pod, address: Address) -> wire.Neighbour | None:
    where = address(pod)
    return None if where is None else {"slot": pod.slot, "uid": pod.uid, "address": where}
