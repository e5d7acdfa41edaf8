"""Copies of snapshots go to the next pod of the ring that is on another node."""

from __future__ import annotations

import pytest

from everstep.backends.agents import neighbours
from everstep.backends.agents.pod import Pod
from everstep.core.world import CopyPlace, JobRef, SlotStart, Snapshot, StartOrder
from everstep.protocol.wire import RunOrder


def start(slots: int, *, copies: tuple[CopyPlace, ...] = ()) -> StartOrder:
    return StartOrder(
        job=JobRef(id="j", run="r", first_run="r"),
        phase="main",
        generation=2,
        run=RunOrder(command=["x"]),
        slots={slot: SlotStart(slot, 1, 1) for slot in range(slots)},
        processes_per_node=2,
        snapshot=Snapshot(5, at=5.0, copies=copies) if copies else None,
    )


def pods(*nodes: str) -> dict[int, Pod]:
    return {
        slot: Pod(uid=f"u{slot}", job="j", slot=slot, node=node, generation=1)
        for slot, node in enumerate(nodes)
    }


@pytest.mark.parametrize(
    ("nodes", "to"),
    [
        (("a", "b", "c"), [1, 2, 0]),
        (("a", "a", "b", "b"), [2, 2, 0, 0]),
        (("a", "a"), [None, None]),
        (("a",), [None]),
    ],
    ids=str,
)
def test_each_pod_has_a_neighbour_on_another_node(
    nodes: tuple[str, ...], to: list[int | None]
) -> None:
    peers = [
        neighbours.neighbour(start(len(nodes)), slot, pods(*nodes)) for slot in range(len(nodes))
    ]
    assert [None if one is None else one.slot for one in peers] == to


def test_one_agent_leads_to_which_the_reports_of_all_come_round() -> None:
    """From each pod to its neighbour, and on from there."""
    for nodes in (
        ("a", "b"),
        ("a", "a", "b", "b"),
        ("a", "b", "c", "a"),
        ("a", "b", "a", "b", "b"),
    ):
        order, there = start(len(nodes)), pods(*nodes)
        peers = {
            slot: neighbours.memory_peers(order, slot, there, address=lambda pod: f"unix:{pod.uid}")
            for slot in there
        }
        (leader,) = (slot for slot, one in peers.items() if one.leads)
        for slot in there:
            at, ways = slot, 0
            while (at != leader or not ways) and ways <= len(nodes):
                neighbour = peers[at].neighbour
                assert neighbour is not None
                at, ways = neighbour["slot"], ways + 1
            assert at == leader, nodes


def test_a_slot_fetches_what_its_own_ranks_lack() -> None:
    order = start(2, copies=(CopyPlace(rank=2, slot=0), CopyPlace(rank=3, slot=0)))
    there = pods("a", "b")
    peers = [
        neighbours.memory_peers(order, slot, there, address=lambda pod: f"unix:{pod.uid}")
        for slot in (0, 1)
    ]
    held_by = {"slot": 0, "uid": "u0", "address": "unix:u0"}
    assert peers[0].fetch == []
    assert peers[1].fetch == [{"rank": 2, "held_by": held_by}, {"rank": 3, "held_by": held_by}]
    assert peers[1].neighbour == held_by


def test_an_agent_without_an_address_is_left_out() -> None:
    order = start(2, copies=(CopyPlace(rank=2, slot=0),))
    peers = neighbours.memory_peers(order, 1, pods("a", "b"), address=lambda _: None)
    assert (peers.neighbour, peers.fetch) == (None, [])
