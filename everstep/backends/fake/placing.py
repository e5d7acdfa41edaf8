"""Places for pods: who waits for them, in which order, and who gets them. All of them, or none.

The queue is strict: re-issued jobs first, then priority, then the order of asking; nobody overtakes
the first, even if there is room for a smaller job. Who fits where is `everstep.core.placement`.
"""

from __future__ import annotations

from collections.abc import Iterable

from everstep.backends.fake import pods, views
from everstep.backends.fake.model import Asking, Device, Job, Node, Placement, Pod
from everstep.backends.fake.state import State
from everstep.core.placement import Need, broken_devices, choose, free_devices, room
from everstep.core.world import NodeView, PlaceOrder, PlaceState, PodRef


def node_views(state: State) -> tuple[NodeView, ...]:
    kind = state.settings.accelerator
    return tuple(
        views.node_view(node, reason=state.isolated.get(name), accelerator=kind)
        for name, node in state.nodes.items()
    )


def ask(state: State, job: Job, order: PlaceOrder) -> PlaceState:
    """Join the queue, or ask again from the same place in it; how far the order is."""
    if job.placement is None or job.placement.generation != order.generation:
        if job.asking is None:
            state.asked += 1
            job.asking = Asking(order=order, number=state.asked)
        job.asking.order = order
        # It has its turn before it gives anything back: nobody behind it may take that.
        job.asking.is_complete = False
        _clear_away(state, job, order)
        job.asking.is_complete = True
        serve_queue(state)
        _wake_in_time(state, job)
    return _answer(state, job, order)


def _clear_away(state: State, job: Job, order: PlaceOrder) -> None:
    """Tell the old pods to go. Those made for this generation are not old."""
    for slot, pod in tuple(job.pods.items()):
        is_old = pod.generation < order.generation
        if slot not in order.slots or (slot in order.recreate and is_old):
            pods.remove(state, pod)


def _wake_in_time(state: State, job: Job) -> None:
    """Old pods that are only being cleared are in nobody's way after their time: it is looked then."""
    if job.asking is None or job.asking.order.clearing_s is None:
        return
    ends = [_in_the_way_until(pod, job.asking.order) for pod in job.leaving]
    coming = min((at for at in ends if at is not None and at > state.now), default=None)
    if coming is not None and coming != job.asking.wakes_at:
        job.asking.wakes_at = coming
        state.time.at(coming, lambda: capacity_changed(state))


def _in_the_way_until(pod: Pod, order: PlaceOrder) -> float | None:
    """When a new pod may be made though this old one is not cleared yet; None: nobody knows."""
    if order.clearing_s is None or pod.dead_at is None:
        return None
    return round(pod.dead_at + order.clearing_s, 6)  # as fine as timers are


def _is_in_the_way(state: State, pod: Pod, order: PlaceOrder) -> bool:
    until = _in_the_way_until(pod, order)
    return until is None or state.now < until


def capacity_changed(state: State) -> None:
    """There may be more room, or less: whoever waits is served, or wants to know."""
    serve_queue(state)
    for job in _waiting_jobs(state):
        state.touch(job)


def serve_queue(state: State) -> None:
    """Give places to the jobs that wait, until there is none for the first of them."""
    for job in sorted(_waiting_jobs(state), key=_turn):
        if not _grant(state, job):
            break
        # Only then: an order that is asked for again in vain must not wake who asks.
        for changed in (job, *_waiting_jobs(state)):
            state.touch(changed)


def _waiting_jobs(state: State) -> list[Job]:
    return [job for job in state.jobs.values() if job.asking is not None]


def _turn(job: Job) -> tuple[bool, int, int]:
    assert job.asking is not None
    return job.asking.turn


def _grant(state: State, job: Job) -> bool:
    assert job.asking is not None
    order = job.asking.order
    missing = _missing(job, order)
    chosen = _choose(state, job, order, missing)
    if not job.asking.is_complete or _torn_down(state, job, order) or len(chosen) < len(missing):
        return False
    seen = {view.name: view for view in node_views(state)}
    for slot, name in chosen.items():
        node = state.nodes[name]
        devices = _devices(node, seen[name], order)
        pods.create(state, job, slot, node=node, devices=devices, generation=order.generation)
    refs = {slot: _ref(job, slot) for slot in sorted(order.slots)}
    job.placement = Placement(generation=order.generation, pods=refs)
    job.asking = None
    return True


def _missing(job: Job, order: PlaceOrder) -> tuple[int, ...]:
    return tuple(slot for slot in sorted(order.slots) if slot not in job.pods)


def _choose(state: State, job: Job, order: PlaceOrder, slots: Iterable[int]) -> dict[int, str]:
    # At most one pod of a job on a node: losing the node shall cost one slot.
    leaving = [pod for pod in job.leaving if _is_in_the_way(state, pod, order)]
    taken = {pod.node.name for pod in (*job.pods.values(), *leaving)}
    return choose(slots, node_views(state), _need(order), taken=taken)


def _need(order: PlaceOrder) -> Need:
    return Need(
        accelerators=order.accelerators_per_node,
        avoid=frozenset(order.avoid),
        avoid_devices=frozenset(order.avoid_devices),
    )


def _devices(node: Node, seen: NodeView, order: PlaceOrder) -> tuple[Device, ...]:
    free = free_devices(seen, _need(order))
    wanted = order.accelerators_per_node
    return tuple(node.devices[index] for index in (free if wanted == "all" else free[:wanted]))


def _torn_down(state: State, job: Job, order: PlaceOrder) -> tuple[str, ...]:
    """Old pods of the job that have to go first, and will. Those on silent nodes may never."""
    going = (p for p in job.leaving if p.node.answers and _is_in_the_way(state, p, order))
    return tuple(f"{p.name} on {p.node.name}" for p in going)


def _ref(job: Job, slot: int) -> PodRef:
    pod = job.pods[slot]
    return PodRef(node=pod.node.name, uid=pod.uid)


# --- answering ----------------------------------------------------------------------------------


def _answer(state: State, job: Job, order: PlaceOrder) -> PlaceState:
    placement = job.placement
    if placement is None or placement.generation != order.generation:
        return _waiting(state, job, order)
    if not placement.is_ready:
        unready = _unready(job, placement)
        if unready:
            wait = f"{unready[0]} to be ready"
            return PlaceState(placed=False, places=len(placement.pods), waiting_for=wait)
        placement.is_ready = True
    return PlaceState(placed=True, pods=placement.pods, places=len(placement.pods))


def _unready(job: Job, placement: Placement) -> list[str]:
    """New pods that did not report yet. Kept ones were ready long ago."""
    new = [pod for pod in job.pods.values() if pod.generation == placement.generation]
    return [
        f"{pod.name} on {pod.node.name}" for pod in new if not (pod.is_ready and pod.node.answers)
    ]


def _waiting(state: State, job: Job, order: PlaceOrder) -> PlaceState:
    missing = _missing(job, order)
    chosen = _choose(state, job, order, missing)
    kept = len(order.slots) - len(missing)
    first = min(_waiting_jobs(state), key=_turn)
    if first is not job:
        wait = f"its turn behind {first.id}"
        return PlaceState(placed=False, places=kept, waiting_for=wait)
    wait = _wanting(state, job, order, len(missing) - len(chosen))
    return PlaceState(placed=False, places=kept + len(chosen), waiting_for=wait)


def _wanting(state: State, job: Job, order: PlaceOrder, missing: int) -> str:
    """What would have to happen, the nearest first."""
    if going := _torn_down(state, job, order):
        return f"{going[0]} to go"
    nodes, need = node_views(state), _need(order)
    if broken := broken_devices(nodes, need):
        return f"device {broken[0]}"
    return room(missing, wanted=len(order.slots), nodes=nodes, need=need)
