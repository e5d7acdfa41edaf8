"""What all clusters decide alike, without one: places, owners, and when a fence holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import pytest

from everstep.backends.rules import fencing, ownership, placing
from everstep.backends.rules.ownership import FolderClaim, FolderPlace
from everstep.backends.rules.placing import OldPod, PlaceRequest
from everstep.core.errors import FolderTaken, StaleGeneration, WrongCluster
from everstep.core.waits import WaitKind
from everstep.core.world import DeviceView, FenceOrder, JobRef, NodeView, PlaceOrder
from everstep.protocol.wire import RunOrder

NOW = 100.0
GENERATION = 3


def order(slots: tuple[int, ...] = (0, 1), **changes: Any) -> PlaceOrder:
    plain = PlaceOrder(
        job=JobRef(id="demo", run="run-1"),
        phase="main",
        generation=GENERATION,
        slots=slots,
        recreate=slots,
        accelerator="simulated",
        accelerators_per_node=1,
    )
    return replace(plain, **changes)


def node(name: str, **changes: Any) -> NodeView:
    devices = tuple(DeviceView(index=index) for index in range(2))
    plain = NodeView(name=name, ready=True, isolated=False, devices=devices, slots_free=1)
    return replace(plain, **changes)


def with_device(name: str, **changes: Any) -> NodeView:
    """A node whose first device has these values."""
    sound = node(name)
    return replace(sound, devices=(replace(sound.devices[0], **changes), *sound.devices[1:]))


def asking(
    place_order: PlaceOrder, *nodes: NodeView, leaving: tuple[OldPod, ...] = ()
) -> PlaceRequest:
    return PlaceRequest(order=place_order, job_nodes={}, leaving=leaving, nodes=nodes, now=NOW)


def nodes_of(place_request: PlaceRequest) -> list[str] | None:
    places = place_request.granted()
    return None if places is None else [places[slot].node for slot in sorted(places)]


# --- places -------------------------------------------------------------------------------------

ROOM: dict[str, tuple[PlaceOrder, list[NodeView], list[str] | None]] = {
    "the first nodes, in their order": (
        order(),
        [node("n1"), node("n0"), node("n2")],
        ["n1", "n0"],
    ),
    "all or none": (order(), [node("n0")], None),
    "one that is isolated": (order((0,)), [node("n0", isolated=True), node("n1")], ["n1"]),
    "one that is not ready": (order((0,)), [node("n0", ready=False), node("n1")], ["n1"]),
    "one that is full": (order((0,)), [node("n0", slots_free=0), node("n1")], ["n1"]),
    "one to avoid": (order((0,), avoid=("n0",)), [node("n0"), node("n1")], ["n1"]),
    "all devices, and one is another's": (
        order((0,), accelerators_per_node="all"),
        [with_device("n0", job="other"), node("n1")],
        ["n1"],
    ),
    "all devices, and one is faulty": (
        order((0,), accelerators_per_node="all"),
        [with_device("n0", health="faulty"), node("n1")],
        ["n1"],
    ),
}


@pytest.mark.parametrize("name", ROOM)
def test_who_gets_which_place(name: str) -> None:
    place_request, nodes, expected = ROOM[name]
    assert nodes_of(asking(place_request, *nodes)) == expected


def test_devices_that_are_anothers_faulty_or_to_avoid_are_left_out() -> None:
    devices = tuple(DeviceView(index=index) for index in range(4))
    shared_node = node(
        "n0",
        devices=(
            replace(devices[0], job="other"),
            replace(devices[1], health="faulty"),
            *devices[2:],
        ),
    )
    places = asking(order((0,), avoid_devices=(("n0", 2),)), shared_node).granted()
    assert places is not None
    assert places[0].devices == (3,)


def test_a_slot_that_has_its_pod_gets_no_other_and_its_node_takes_none_beside_it() -> None:
    place_request = replace(asking(order(), node("n0"), node("n1")), job_nodes={1: "n0"})
    places = place_request.granted()
    assert places is not None
    assert {slot: place.node for slot, place in places.items()} == {0: "n1"}


WANTS: dict[str, tuple[PlaceOrder, list[NodeView], int, str]] = {
    "more nodes than there are": (
        order((0, 1, 2)),
        [node("n0"), node("n1")],
        2,
        "room for 1 more pod (the cluster has 2 nodes, the job wants 3: it never fits here)",
    ),
    "more devices than a node has": (
        order(accelerators_per_node=3),
        [node("n0"), node("n1")],
        0,
        "room for 2 more pods (no node has more than 2 devices, "
        "the job wants 3 devices of 2 nodes: it never fits here)",
    ),
    "all devices of nodes that have none": (
        order((0,), accelerators_per_node="all"),
        [node("n0", devices=())],
        0,
        "room for 1 more pod (no node has any device, "
        "the job wants all devices of 1 node: it never fits here)",
    ),
    "devices that too few nodes have": (
        order(accelerators_per_node=2),
        [node("n0"), node("n1", devices=())],
        1,
        "room for 1 more pod (1 node of 2 can give 2 devices, the job wants 2: it never fits here)",
    ),
    "a node that may be back": (
        order((0,)),
        [node("n0", ready=False)],
        0,
        "room for 1 more pod",
    ),
    "fewer than it would like": (
        order((0, 1, 2, 3), least=2),
        [node("n0"), node("n1", slots_free=0)],
        1,
        "room for 1 to 3 more pods",
    ),
    "more than the fewest": (
        order((0, 1, 2), least=1),
        [node("n0")],
        1,
        "room for 2 more pods",
    ),
    "a device that may heal": (
        order((0,), accelerators_per_node=2),
        [with_device("n0", health="faulty")],
        0,
        "device n0/0",
    ),
    "that somebody makes room": (order((0,)), [node("n0", slots_free=0)], 0, "room for 1 more pod"),
}


@pytest.mark.parametrize("name", WANTS)
def test_who_waits_is_told_for_what(name: str) -> None:
    place_request, nodes, places, wait = WANTS[name]
    state = asking(place_request, *nodes).waiting_state()
    assert (state.placed, state.places, state.waiting_for) == (False, places, wait)


def test_who_is_not_the_first_waits_for_its_turn_whatever_there_is_room_for() -> None:
    ahead = order(job=JobRef(id="another", run="r1"), accelerators_per_node="all")
    another = asking(ahead, node("n0"), node("n1"))
    state = replace(asking(order((0,)), node("n0")), claims=(another,)).waiting_state()
    assert (state.places, state.waiting_for) == (0, "its turn behind another")


OLD = OldPod(name="old", node="n0", is_reachable=True, dead_at=None)
CLEARING = {
    "runs": (OLD, 5.0, None),
    "runs, out of reach": (replace(OLD, is_reachable=False), 5.0, ["n1"]),
    "is being cleared": (replace(OLD, dead_at=NOW - 4), 5.0, None),
    "was cleared long enough": (replace(OLD, dead_at=NOW - 5), 5.0, ["n0"]),
    "is being cleared, however long it takes": (replace(OLD, dead_at=NOW - 5), None, None),
}


@pytest.mark.parametrize("name", CLEARING)
def test_an_old_pod_is_in_the_way_until_its_place_is_free(name: str) -> None:
    old, clearing_s, expected = CLEARING[name]
    place_order = order((0,), clearing_s=clearing_s)
    place_request = asking(place_order, node("n0"), node("n1"), leaving=(old,))
    assert nodes_of(place_request) == expected
    if expected is None:
        assert place_request.waiting_state().waiting_for == "old on n0 to go"


def test_an_old_pod_stops_being_in_the_way_so_long_after_its_end() -> None:
    leaving = [replace(OLD, dead_at=NOW - ago) for ago in (1.0, 3.0, 7.0)] + [OLD]
    assert placing.opens_at(order(clearing_s=5.0), leaving, now=NOW) == NOW + 2
    assert placing.opens_at(order(clearing_s=None), leaving, now=NOW) is None


def test_pods_of_slots_not_named_and_older_ones_to_recreate_are_told_to_go() -> None:
    made_in = {0: 1, 1: GENERATION, 2: 1, 3: 1}
    place_order = order((0, 1, 2), recreate=(0, 1))
    assert placing.slots_to_remove(place_order, made_in) == (0, 3)


def test_re_issued_jobs_come_first_then_priority_then_the_order_of_asking() -> None:
    waiting = [
        ("reissued", order(reissued=True), 4),
        ("important", order(priority=5), 3),
        ("early", order(), 1),
        ("late", order(), 2),
    ]
    for mixed in permutations(waiting):
        first = sorted(mixed, key=lambda one: placing.queue_key(one[1], one[2]))
        assert [name for name, *_ in first] == ["reissued", "important", "early", "late"]


# --- owners -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClusterRecord:
    id: str = "demo"
    newest: int = 5
    newest_run: str = "run-2"
    closed: int = 4
    newest_on_storage: int = 0


def test_orders_of_another_generation_than_the_newest_are_refused() -> None:
    ownership.refuse_other(ClusterRecord(), 5)
    with pytest.raises(StaleGeneration):
        ownership.refuse_other(ClusterRecord(), 4)
    with pytest.raises(WrongCluster):
        ownership.refuse_other(ClusterRecord(), 6)


def test_a_job_that_does_not_say_where_it_began_is_at_home_everywhere() -> None:
    for books in ("", "ours"):
        ownership.refuse_strange(JobRef(id="demo", run="r", books=books), "ours")
    with pytest.raises(WrongCluster):
        ownership.refuse_strange(JobRef(id="demo", run="r", books="theirs"), "ours")


def test_nothing_is_made_of_a_generation_that_has_ended() -> None:
    ownership.refuse_ended(ClusterRecord(), 5)
    with pytest.raises(StaleGeneration):
        ownership.refuse_ended(ClusterRecord(), 4)


@pytest.mark.parametrize(("run", "own_generation"), [("run-2", 3), ("run-1", 5), ("janitor", None)])
def test_the_owner_and_who_never_had_a_generation_may_end_a_job(
    run: str, own_generation: int | None
) -> None:
    ownership.refuse_late_end(ClusterRecord(), run, own_generation)


def test_an_earlier_run_may_not_end_what_a_later_one_began() -> None:
    with pytest.raises(StaleGeneration):
        ownership.refuse_late_end(ClusterRecord(), "run-1", 4)


GENERATIONS = {
    "a new key": (None, 0, 0, 6),
    "a key that was answered": (3, 0, 9, 3),
    "one answered in a forgotten time": (3, 3, 0, 6),
    "one above all was found on storage": (None, 0, 9, 10),
}


@pytest.mark.parametrize("name", GENERATIONS)
def test_which_generation_a_key_is_given(name: str) -> None:
    before, above, newest, expected = GENERATIONS[name]
    assert (
        ownership.generation_for(ClusterRecord(newest_on_storage=newest), before, above=above)
        == expected
    )


def test_all_folders_are_one_jobs_or_none_is() -> None:
    model, saved = FolderPlace("disk", "m"), FolderPlace("disk", "c")
    claims = [claim(model, field="model_dir"), claim(saved, path="/c", field="checkpoints.path")]
    expected = {model: "demo", saved: "demo"}
    assert ownership.claimed("demo", claims, {}) == expected
    assert ownership.claimed("demo", claims, expected) == expected
    with pytest.raises(FolderTaken, match=r"checkpoints.path: job other.*writes to /c"):
        ownership.claimed("demo", claims, {saved: "other"})


def claim(*places: FolderPlace, path: str = "/m", field: str = "model_dir") -> FolderClaim:
    return FolderClaim(path=path, field=field, places=places)


def test_the_same_path_on_two_volumes_is_two_folders() -> None:
    owners = {FolderPlace("disk", "out"): "other"}
    here = FolderPlace("tape", "out")
    assert ownership.claimed("demo", [claim(here, path="/out")], owners) == {here: "demo"}


def test_one_volume_under_two_paths_is_one_folder() -> None:
    shared = FolderPlace("disk", "out")
    for path in ("/here/out", "/there"):
        with pytest.raises(FolderTaken, match=f"job other.*writes to {path}"):
            ownership.claimed(
                "demo", [claim(FolderPlace("root", path), shared, path=path)], {shared: "other"}
            )


def test_the_same_folder_is_named_before_one_that_contains_it() -> None:
    around, same = FolderPlace("disk", "out"), FolderPlace("disk", "out/ckpt")
    for owners in ({around: "other", same: "other"}, {same: "other", around: "other"}):
        with pytest.raises(FolderTaken, match=r"job other.*writes to /out/ckpt"):
            ownership.claimed("demo", [claim(same, path="/out/ckpt")], owners)


# --- fences -------------------------------------------------------------------------------------

FENCE = FenceOrder(
    job=JobRef(id="demo", run="run-1"),
    generation=GENERATION,
    lowest_slot=2,
    run=RunOrder(model_dir="/m"),
)


def test_a_fence_waits_for_who_writes_it_if_there_is_anywhere_to_write() -> None:
    assert fencing.has_folder(FENCE)
    assert fencing.to_be_written(FENCE).waiting_for == "slot 2 to write the fence"
    assert not fencing.has_folder(replace(FENCE, run=RunOrder()))


SOON, PASSED = NOW + 1, NOW
HOLDS: dict[str, tuple[list[str], bool, float | None, str | None]] = {
    "all is proven": ([], False, SOON, None),
    "one may still run": (["a on n0"], False, SOON, "proof that a on n0 ended"),
    "its time has passed": (["a on n0"], True, PASSED, None),
    "there may be others": ([], True, SOON, WaitKind.UNKNOWN_PODS.of().sentence),
    "nowhere to write, one may still run": (["a on n0"], False, None, "proof that a on n0 ended"),
    "nowhere to write, there may be others": ([], True, None, None),
}


@pytest.mark.parametrize("name", HOLDS)
def test_when_a_fence_holds(name: str) -> None:
    unproven, may_have_unknown_pods, holds_at, wait = HOLDS[name]
    state = fencing.state(
        unproven, may_have_unknown_pods=may_have_unknown_pods, holds_at=holds_at, now=NOW
    )
    assert (state.done, state.waiting_for) == (wait is None, wait or "")


def test_a_fence_that_was_written_nowhere_never_holds_by_its_time() -> None:
    assert fencing.holds_at(None, fence_s=30.0, margin_s=5.0) is None
    assert fencing.holds_at(NOW, fence_s=30.0, margin_s=5.0) == NOW + 35
