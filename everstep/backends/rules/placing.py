"""Places for pods: who waits for them, in which order, and who gets them. All of them, or none.

The turns: re-issued jobs first, then priority, then the order of asking. A job that waits claims each node
that it could use once other jobs there have ended: how long these run is unknown. A job behind it goes ahead
only on nodes that no claim includes, and on those that have room for its pods and all claims at once. So,
unless something else breaks, no job starts later than it would without those that went ahead of it.

Two kinds of jobs claim nothing and are passed over: one that can never fit here, and a new one that isolated
nodes keep from starting, whichever jobs end; an operator may release these in an hour or never. A re-issued
one keeps its claim: its wait has a limit. Who fits where is `everstep.core.recovering.placement`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import TypeVar

from everstep.core.recovering.placement import (
    Need,
    broken_devices,
    choose,
    could_hold,
    fits,
    free_devices,
    is_open,
    isolated_places,
    isolation_hint,
    more_pods,
    shortage,
)
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import NodeView, PlaceOrder, PlaceState, PodRef


def queue_key(order: PlaceOrder, number: int) -> tuple[bool, int, int]:
    """Sort key of waiting orders; `number` grows with every order."""
    return (not order.reissued, -order.priority, number)


def slots_to_remove(order: PlaceOrder, made_in: Mapping[int, int]) -> tuple[int, ...]:
    """The slots whose pods have to go: those not in the order, and old ones to recreate.

    `made_in` has the generation of each slot's pod.
    """
    old = {slot for slot, generation in made_in.items() if generation < order.generation}
    going = (made_in.keys() - set(order.slots)) | (old & set(order.recreate))
    return tuple(sorted(going))


def claims_before(job: str, waiting: Iterable[PlaceRequest]) -> tuple[PlaceRequest, ...]:
    """The requests that claim nodes before this job has its turn. `waiting`: all, in that order."""
    before = takewhile(lambda request: request.order.job.id != job, waiting)
    return tuple(request for request in before if request.claims_nodes)


Job = TypeVar("Job")


def serve(
    waiting: Iterable[Job],
    *,
    nodes: Callable[[], Sequence[NodeView]],
    request_of: Callable[[Job, Sequence[NodeView]], PlaceRequest],
    grant: Callable[[Job, Mapping[int, Place]], None],
) -> None:
    """Grant places to the jobs that wait, each in its turn and beside the claims of those before it."""
    claims: list[PlaceRequest] = []
    views: Sequence[NodeView] | None = None  # until a job needs them: there may be thousands
    for job in waiting:
        views = nodes() if views is None else views
        request = replace(request_of(job, views), claims=claims)
        if (places := request.granted()) is not None:
            grant(job, places)
            views = None
        elif request.claims_nodes:
            claims.append(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class OldPod:
    """A pod that is being removed and is still in the books."""

    name: str
    node: str
    is_reachable: bool  # if not, its removal may never be confirmed
    dead_at: float | None  # since then nothing of it runs any more


def free_at(pod: OldPod, order: PlaceOrder) -> float | None:
    """When a new pod may be made although this old one is still in the books.

    None: unknown, or only once the old one is removed (the order has no `clearing_s`).
    """
    if order.clearing_s is None or pod.dead_at is None:
        return None
    return round(pod.dead_at + order.clearing_s, 6)  # as fine as our clocks are


def opens_at(order: PlaceOrder, leaving: Iterable[OldPod], *, now: float) -> float | None:
    """The next time at which one of the old pods stops being in the way, as `free_at` has it."""
    ends = (free_at(pod, order) for pod in leaving)
    return min((at for at in ends if at is not None and at > now), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The node and the devices of a new pod."""

    node: str
    devices: tuple[int, ...]


def still_fits(place: Place, order: PlaceOrder, nodes: Iterable[NodeView]) -> bool:
    """Whether a pod that stands by at this place may become one of the order's."""
    node = next((node for node in nodes if node.name == place.node), None)
    if node is None or not node.ready or node.isolated or node.name in order.avoid:
        return False
    device_count = order.accelerators_per_node
    sound = {device.index for device in node.devices if device.health == "ok"}
    avoided = {(node.name, index) for index in place.devices} & {*order.avoid_devices}
    return sound >= {*place.devices} and not avoided and device_count in ("all", len(place.devices))


def standby_places(
    order: PlaceOrder,
    missing: Sequence[int],
    *,
    in_use: Iterable[str],
    nodes: Sequence[NodeView],
) -> Mapping[int, Place]:
    """A place for a pod beside each of these slots, on nodes that are not in use; all of them or none."""
    need = _need(order)
    chosen = choose(missing, nodes, need, busy=in_use)
    if len(chosen) < len(missing):
        return {}
    views = {view.name: view for view in nodes}
    return {s: Place(node=name, devices=_devices(views[name], need)) for s, name in chosen.items()}


def takers(
    slots: Iterable[int], standing_by: Collection[int], *, spares: Collection[int]
) -> Mapping[int, int]:
    """Which pod each of these slots gets: slot -> number of the one that stands by for it, else of a spare.

    Slots for which none is left are not in the answer.
    """
    number_by_slot: dict[int, int] = {}
    free = [number for number in sorted(standing_by) if number in spares]
    for slot in sorted(slots):
        number = slot if slot in standing_by else next(iter(free), None)
        if number is not None:
            number_by_slot[slot] = number
            free = [other for other in free if other != number]
    return number_by_slot


def standby_state(
    missing: Sequence[int], unready: Sequence[str], pods: Mapping[int, PodRef]
) -> PlaceState:
    """How far the standbys are. `missing`: slots without one; `unready`: names of those not ready yet."""
    if missing or unready:
        room = more_pods(len(missing), len(missing))
        wait = WaitKind.ROOM.of(room) if missing else WaitKind.POD_READY.of(unready[0])
        return PlaceState(placed=False, places=len(pods), wait=wait)
    return PlaceState(placed=True, pods=pods, places=len(pods))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A pod of another job that stands by for any of its slots."""

    uid: str
    place: Place


def spares_to_end(
    request: PlaceRequest, spares: Iterable[Spare], *, ending: int
) -> tuple[Spare, ...]:
    """The spares of other jobs that give way to a restarted job, as many as it lacks places.

    `ending`: so many give way already. A new job waits beside spares: they are kept for restarts.
    """
    if not request.order.reissued:
        return ()
    views = {view.name: view for view in request.nodes}
    usable = (one for one in spares if request.could_have(views.get(one.place.node), one.place))
    return tuple(islice(usable, max(0, request.lacking - ending)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """An order to place pods, and everything on which its answer depends."""

    order: PlaceOrder
    job_nodes: Mapping[int, str]  # slot -> node of the pods that count as the job's
    leaving: Sequence[OldPod]
    nodes: Sequence[NodeView]
    now: float
    claims: Sequence[PlaceRequest] = ()  # of jobs whose turn is before
    has_removed_old: bool = True  # False: it has yet to give back pods, and waits until then

    def granted(self) -> Mapping[int, Place] | None:
        """A place for every slot that has no pod; None if not all of them can have one now."""
        if not self.has_removed_old:
            return None
        chosen = self._chosen()
        if self._removable() or len(chosen) < len(self._missing()):
            return None
        views, need = {view.name: view for view in self.nodes}, self._need
        return {
            slot: Place(node=name, devices=_devices(views[name], need))
            for slot, name in chosen.items()
        }

    @property
    def lacking(self) -> int:
        """How many of its slots have neither a pod nor a place."""
        return len(self._missing()) - len(self._chosen())

    def could_have(self, node: NodeView | None, place: Place) -> bool:
        """Whether a slot would fit on the node without the pod that is at this place."""
        if node is None or node.name in self.job_nodes.values() or fits(node, self._need):
            return False
        return fits(_without_pod(node, place), self._need)

    def waiting_state(self) -> PlaceState:
        """The answer to an order that got no places."""
        places = len(self.order.slots) - len(self._missing()) + len(self._chosen())
        if self.claims and self.claims_nodes:
            wait = WaitKind.TURN.of(self.claims[0].order.job.id)
        else:
            wait = self._next_need(places)
        return PlaceState(placed=False, places=places, wait=wait)

    @property
    def claims_nodes(self) -> bool:
        """Whether jobs behind this one have to leave it the nodes that it could use."""
        return not self.never_fits and (self.order.reissued or not self._needs_release)

    @property
    def _needs_release(self) -> bool:
        """Whether isolated nodes keep the job from starting, whichever other jobs end."""
        open_nodes = {node.name for node in self.nodes if is_open(node, self._need)}
        return len(open_nodes | {*self.job_nodes.values()}) < self._least

    def _includes(self, node: NodeView) -> bool:
        """Whether a claim of this request includes the node."""
        is_other = node.name not in self.order.avoid and node.name not in self.job_nodes.values()
        return is_other and could_hold(node, self._need)

    @property
    def never_fits(self) -> bool:
        """Whether the cluster is too small for the order, whatever becomes free on it or is mended."""
        return bool(self._shortage)

    @property
    def _shortage(self) -> str:
        return shortage(self._least, self.nodes, self._need)

    @property
    def _least(self) -> int:
        """The least number of nodes with which the job would go on, by smaller orders."""
        slots = len(self.order.slots)
        return slots if self.order.least is None else self.order.least

    def _missing(self) -> tuple[int, ...]:
        return tuple(slot for slot in sorted(self.order.slots) if slot not in self.job_nodes)

    def _chosen(self) -> dict[int, str]:
        # At most one pod of a job on a node: losing the node shall cost one slot.
        occupied = {*self.job_nodes.values(), *(pod.node for pod in self._in_the_way())}
        return choose(self._missing(), self._unclaimed(), self._need, busy=occupied)

    def _unclaimed(self) -> Iterable[NodeView]:
        """The nodes where a slot would leave all claims what they have there, best first."""
        nodes: Sequence[NodeView] = self.nodes
        if self.claims:
            nodes = [n for n in nodes if fits(n, self._need) and self._leaves_claims(n)]
        last_choice = frozenset(self.order.last_choice)
        return sorted(nodes, key=lambda n: n.name in last_choice) if last_choice else nodes

    def _leaves_claims(self, node: NodeView) -> bool:
        node = _with_pod(node, self._need)
        for claim in self.claims:
            if not claim._includes(node):
                continue
            if not fits(node, claim._need):
                return False
            node = _with_pod(node, claim._need)
        return True

    def _in_the_way(self) -> Iterable[OldPod]:
        for pod in self.leaving:
            at = free_at(pod, self.order)
            if at is None or self.now < at:
                yield pod

    def _removable(self) -> list[str]:
        """Old pods in the way that are reachable: they will be gone soon, and are waited for."""
        return [f"{pod.name} on {pod.node}" for pod in self._in_the_way() if pod.is_reachable]

    @property
    def _need(self) -> Need:
        return _need(self.order)

    def _next_need(self, places: int) -> WaitCause:
        """What the order waits for, the soonest first. `places`: of its slots, those that have room now."""
        room = more_pods(self._least - places, len(self.order.slots) - places)
        if why := self._shortage:
            return WaitKind.NEVER_FITS.of(room, why)
        if removable := self._removable():
            return WaitKind.POD_GONE.of(removable[0])
        if broken := broken_devices(self.nodes, self._need):
            hint = isolation_hint(self._isolated_at(broken[0]))
            kind = WaitKind.ISOLATED_DEVICE if hint else WaitKind.DEVICE
            return kind.of(broken[0], hint)
        hint = isolation_hint(isolated_places(self.nodes, self._need))
        return (WaitKind.ISOLATED_ROOM if hint else WaitKind.ROOM).of(room, hint)

    def _isolated_at(self, device: str) -> tuple[str, ...]:
        return tuple(name for name in isolated_places(self.nodes, self._need) if name == device)


def _need(order: PlaceOrder) -> Need:
    return Need(
        accelerators=order.accelerators_per_node,
        avoid=frozenset(order.avoid),
        avoid_devices=frozenset(order.avoid_devices),
    )


def _with_pod(node: NodeView, need: Need) -> NodeView:
    """The node with one more pod of this need, if it has room for that."""
    if need.accelerators == 0:
        return replace(node, slots_free=node.slots_free - 1)
    indexes = {*_devices(node, need)}
    devices = (replace(d, job="other") if d.index in indexes else d for d in node.devices)
    return replace(node, devices=tuple(devices))


def _without_pod(node: NodeView, place: Place) -> NodeView:
    """The node once the pod at this place is gone."""
    if not place.devices:
        return replace(node, slots_free=node.slots_free + 1)
    devices = (replace(d, job=None) if d.index in place.devices else d for d in node.devices)
    return replace(node, devices=tuple(devices))


def _devices(node: NodeView, need: Need) -> tuple[int, ...]:
    if need.accelerators == 0:
        return ()
    free = free_devices(node, need)
    return free if need.accelerators == "all" else free[: need.accelerators]
