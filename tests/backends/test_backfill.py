"""Jobs behind one that waits: they go ahead where that delays no claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.backends.rules import placing
from everstep.backends.rules.placing import Place, PlaceRequest
from everstep.core.world import DeviceView, JobRef, NodeView, PlaceOrder

Devices = int | Literal["all"]


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Nodes, whose devices pods of jobs hold, and a queue."""

    nodes: dict[str, NodeView]
    queue: list[PlaceOrder] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    pods: list[tuple[str, Place]] = field(default_factory=list)

    def serve(self) -> None:
        placing.serve(
            tuple(self.queue), nodes=self.views, request_of=self.request, grant=self.grant
        )

    def views(self) -> tuple[NodeView, ...]:
        return tuple(self.nodes.values())

    def request(self, order: PlaceOrder, nodes: Sequence[NodeView]) -> PlaceRequest:
        return PlaceRequest(order=order, job_nodes={}, leaving=(), nodes=nodes, now=0.0)

    def grant(self, order: PlaceOrder, places: Mapping[int, Place]) -> None:
        self.queue.remove(order)
        self.placed.append(order.job.id)
        for place in places.values():
            self.hold(order.job.id, place)

    def hold(self, job: str, place: Place) -> None:
        self.pods.append((job, place))
        self._mark(place, job)

    def end(self, job: str) -> None:
        for pod in [pod for pod in self.pods if pod[0] == job]:
            self.pods.remove(pod)
            self._mark(pod[1], None)

    def _mark(self, place: Place, job: str | None) -> None:
        node = self.nodes[place.node]
        devices = [replace(d, job=job) if d.index in place.devices else d for d in node.devices]
        slots = 0 if place.devices else (-1 if job else 1)
        self.nodes[place.node] = replace(
            node, devices=tuple(devices), slots_free=node.slots_free + slots
        )

    def release(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], isolated=False)

    def set_ready(self, name: str, is_ready: bool) -> None:
        self.nodes[name] = replace(self.nodes[name], ready=is_ready)

    def isolate(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], isolated=True)

    def waits(self, job: str) -> str:
        """What the job waits for."""
        order = next(order for order in self.queue if order.job.id == job)
        waiting = [self.request(each, self.views()) for each in self.queue]
        claims = placing.claims_before(job, waiting)
        return replace(self.request(order, self.views()), claims=claims).waiting_state().waiting_for


def wants(job: str, slots: int, devices: Devices = "all", *, reissued: bool = False) -> PlaceOrder:
    return PlaceOrder(
        job=JobRef(id=job, run="r1"),
        phase="main",
        generation=1,
        slots=tuple(range(slots)),
        recreate=tuple(range(slots)),
        accelerators_per_node=devices,
        reissued=reissued,
    )


def cluster(*sizes: int, isolated: Sequence[int] = ()) -> Cluster:
    """Nodes n0, n1 ... with so many devices each."""
    return Cluster(
        nodes={
            f"n{n}": NodeView(
                name=f"n{n}",
                isolated=n in isolated,
                devices=tuple(DeviceView(index=index) for index in range(size)),
            )
            for n, size in enumerate(sizes)
        }
    )


# -- Examples --------------------------------------------------------------------------------------


def test_jobs_pass_a_new_one_that_only_a_release_lets_start() -> None:
    scene = cluster(8, 8, 8, 8, isolated=(2, 3))
    scene.queue = [wants("large", 3), wants("a", 1), wants("b", 1), wants("c", 1)]
    scene.serve()
    assert scene.placed == ["a", "b"]
    assert scene.waits("large") == "room for 3 more pods (n2, n3 are isolated: everstep release n2)"
    scene.release("n2")
    scene.serve()
    assert scene.placed == ["a", "b"], "now it waits for jobs to end, and has its claim"
    assert scene.waits("c") == "its turn behind large"
    for job in ("a", "b"):
        scene.end(job)
    scene.serve()
    assert scene.placed == ["a", "b", "large"]


def test_a_re_issued_job_keeps_its_nodes_until_one_is_released() -> None:
    scene = cluster(8, 8, 8, isolated=(2,))
    scene.queue = [wants("large", 3, reissued=True), wants("small", 1)]
    scene.serve()
    assert scene.placed == []
    assert scene.waits("large") == "room for 1 more pod (n2 is isolated: everstep release n2)"
    scene.release("n2")
    scene.serve()
    assert scene.placed == ["large"]


@pytest.mark.parametrize(
    ("devices", "placed"), [(2, ["small"]), (4, ["small"]), (5, []), ("all", [])]
)
def test_a_job_goes_ahead_on_a_node_that_has_room_for_both(
    devices: Devices, placed: list[str]
) -> None:
    scene = cluster(8, 8)
    scene.hold("runs", Place(node="n0", devices=(0, 1, 2, 3, 4)))
    scene.queue = [wants("large", 2, 4), wants("small", 1, devices)]
    scene.serve()
    assert scene.placed == placed


def test_two_claims_on_one_node_are_both_left_their_room() -> None:
    scene = cluster(8, 8, 8)
    for name in ("n0", "n1"):
        scene.hold("runs", Place(node=name, devices=tuple(range(8))))
    scene.queue = [wants("one", 2, 4), wants("two", 2, 3), wants("small", 1, 2)]
    scene.serve()
    assert scene.placed == []


def test_a_job_goes_ahead_on_nodes_that_are_too_small_for_the_one_before_it() -> None:
    scene = cluster(8, 8, 2)
    scene.hold("runs", Place(node="n0", devices=(0,)))
    scene.queue = [wants("large", 2, 8), wants("small", 1, 2)]
    scene.serve()
    assert scene.placed == ["small"]


# -- For every course of events ----------------------------------------------------------------------

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=5)
NEEDS: st.SearchStrategy[Devices] = st.integers(0, 3) | st.just("all")
Event = Callable[[Cluster], None]


@st.composite
def courses(draw: st.DrawFn) -> tuple[Callable[[], Cluster], list[PlaceOrder], list[Event]]:
    """A cluster with jobs that run, jobs that wait, and what happens then: ends, releases, returns."""
    sizes = draw(SIZES)
    names = st.sampled_from([f"n{n}" for n in range(len(sizes))])
    isolated = draw(st.sets(st.integers(0, len(sizes) - 1)))
    down = draw(st.sets(names))
    needs = draw(st.lists(NEEDS, max_size=4))

    def begin() -> Cluster:
        scene = cluster(*sizes)
        scene.queue = [wants(f"runs{n}", 1, need) for n, need in enumerate(needs)]
        scene.serve()
        scene.queue.clear()
        for number in isolated:
            scene.isolate(f"n{number}")
        for name in down:
            scene.set_ready(name, False)
        return scene

    is_reissued = draw(st.booleans())
    head = wants("head", draw(st.integers(1, 4)), draw(NEEDS), reissued=is_reissued)
    smaller = [
        wants(f"small{n}", draw(st.integers(1, 2)), draw(NEEDS))
        for n in range(draw(st.integers(1, 4)))
    ]
    ends = [_end(f"runs{n}") for n in range(len(needs))]
    returns = [_return(name) for name in down]
    # A new job that only a release lets start has no claim.
    releases = [_release(f"n{n}") for n in isolated] if is_reissued else []
    return begin, [head, *smaller], draw(st.permutations([*ends, *returns, *releases]))


def _end(job: str) -> Event:
    return lambda scene: scene.end(job)


def _return(name: str) -> Event:
    return lambda scene: scene.set_ready(name, True)


def _release(name: str) -> Event:
    return lambda scene: scene.release(name)


def start_of_first(scene: Cluster, queue: Sequence[PlaceOrder], events: Sequence[Event]) -> int:
    """After how many events the first of the queue starts; one more than there are if it never does."""
    scene.queue = list(queue)
    for count in range(len(events) + 1):
        scene.serve()
        if queue[0].job.id in scene.placed:
            return count
        if count < len(events):
            events[count](scene)
    return len(events) + 1


@given(courses())
def test_the_first_never_starts_later_than_without_the_rest(
    course: tuple[Callable[[], Cluster], list[PlaceOrder], list[Event]],
) -> None:
    begin, queue, events = course
    alone = start_of_first(begin(), queue[:1], events)
    assert start_of_first(begin(), queue, events) == alone
