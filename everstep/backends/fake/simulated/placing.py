"""Orders to place, in the fake cluster: they wait and get pods, by `everstep.backends.rules.placing`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from everstep.backends.fake import cluster_views
from everstep.backends.fake.simulated import pods
from everstep.backends.fake.simulated.model import Job, Placement, Pod, WaitingJob
from everstep.backends.fake.simulated.state import FakeState
from everstep.backends.rules import nodes, placing
from everstep.core.waits import WaitKind
from everstep.core.world import NodeView, PlaceOrder, PlaceState, PodRef


def node_views(state: FakeState) -> tuple[NodeView, ...]:
    kind = state.settings.accelerator
    devices = nodes.devices_by_node(state.isolated)
    return tuple(
        cluster_views.node_view(
            node,
            reason=state.isolated.get(name),
            devices=devices.get(name, cluster_views.NOTHING),
            accelerator=kind,
            now=state.now,
        )
        for name, node in state.nodes.items()
    )


def take_order(state: FakeState, job: Job, order: PlaceOrder) -> PlaceState:
    """Join the queue or keep the place in it. Returns the state of the order."""
    if job.placement is None or job.placement.generation != order.generation:
        if job.waiting is None:
            state.queue_count += 1
            job.waiting = WaitingJob(order=order, number=state.queue_count)
        job.waiting.order = order
        # It waits before it gives any pod back, so that no job behind it gets that place.
        job.waiting.has_removed_old = False
        made_in = {slot: pod.generation for slot, pod in job.pods.items()}
        pods.remove(state, [job.pods[slot] for slot in placing.slots_to_remove(order, made_in)])
        _take_standbys(state, job, order)
        job.waiting.has_removed_old = True
        serve_queue(state)
        _end_spares_for(state, job)
        _wake_in_time(state, job)
    return _answer(state, job, order)


def _take_standbys(state: FakeState, job: Job, order: PlaceOrder) -> None:
    """Give slots without a pod one that stands by. Of the others, the order's spares go on standing by."""
    usable = _usable_standbys(state, job, order)
    without_pod = {*order.slots} - job.pods.keys()
    for slot, number in placing.takers(without_pod, usable, spares=order.spares).items():
        pods.take(state, usable[number], slot, order.generation)
    pods.remove(state, _unwanted_standbys(job, usable, order.spares))


def _end_spares_for(state: FakeState, job: Job) -> None:
    """Let spares of other jobs give way to a restarted job that still waits."""
    if job.waiting is None:
        return
    other_jobs = [other for other in state.jobs.values() if other is not job]
    ending = sum(pod.stood_up_s is not None for other in other_jobs for pod in other.leaving)
    spare_pods = {
        pod.uid: pod
        for other in other_jobs
        for pod in other.standbys.values()
        if pod.stood_up_s is not None
    }
    spares = [placing.Spare(uid=uid, place=_place(pod)) for uid, pod in spare_pods.items()]
    request = _waiting_request(state, job, node_views(state))
    chosen = placing.spares_to_end(request, spares, ending=ending)
    pods.remove(state, [spare_pods[spare.uid] for spare in chosen])


def _place(pod: Pod) -> placing.Place:
    return placing.Place(node=pod.node.name, devices=tuple(d.index for d in pod.devices))


def _usable_standbys(state: FakeState, job: Job, order: PlaceOrder) -> dict[int, Pod]:
    views = node_views(state)
    return {n: pod for n, pod in job.standbys.items() if _is_usable(pod, order, views)}


def _unwanted_standbys(job: Job, usable: Mapping[int, Pod], to_keep: Collection[int]) -> list[Pod]:
    return [pod for n, pod in job.standbys.items() if n not in to_keep or n not in usable]


def ensure_standbys(state: FakeState, job: Job, order: PlaceOrder) -> PlaceState:
    """Let a pod stand by for each slot to recreate, and keep the order's spares. Returns how far they are."""
    all_views = node_views(state)
    usable = _usable_standbys(state, job, order)
    pods.remove(state, _unwanted_standbys(job, usable, {*order.recreate, *order.spares}))
    for slot, number in placing.takers(order.recreate, job.standbys, spares=order.spares).items():
        pods.stand_by_for(job.standbys[number], slot)
    missing = [slot for slot in order.recreate if slot not in job.standbys]
    # Jobs that wait for a place are served first, except those that claim none.
    waiting = (_waiting_request(state, other, all_views) for other in _waiting_jobs(state))
    if missing and not any(request.claims_nodes for request in waiting):
        all_pods = (*job.pods.values(), *job.leaving, *job.standbys.values())
        in_use = {pod.node.name for pod in all_pods}
        all_views = node_views(state)
        for slot, place in placing.standby_places(
            order, missing, in_use=in_use, nodes=all_views
        ).items():
            node = state.nodes[place.node]
            devices = tuple(node.devices[index] for index in place.devices)
            is_spare = slot not in order.slots
            pods.stand_by(state, job, slot, node=node, devices=devices, is_spare=is_spare)
        missing = [slot for slot in order.recreate if slot not in job.standbys]
    job.lacks_standby = bool(missing)
    standbys = {slot: job.standbys[slot] for slot in order.recreate if slot in job.standbys}
    refs = {s: PodRef(node=pod.node.name, uid=pod.uid) for s, pod in standbys.items()}
    unready = [f"{p.name} on {p.node.name}" for p in standbys.values() if not p.is_ready]
    return placing.standby_state(missing, unready, refs)


def _is_usable(pod: Pod, order: PlaceOrder, all_views: tuple[NodeView, ...]) -> bool:
    is_fit = placing.still_fits(_place(pod), order, all_views)
    return not pod.is_lost and pod.node.answers and is_fit


def _wake_in_time(state: FakeState, job: Job) -> None:
    """Try again when old pods that are only being cleared are out of the way."""
    if job.waiting is None:
        return
    coming = placing.opens_at(job.waiting.order, _leaving(job), now=state.now)
    if coming is not None and coming != job.waiting.wakes_at:
        job.waiting.wakes_at = coming
        state.time.at(coming, lambda: capacity_changed(state))


def capacity_changed(state: FakeState) -> None:
    """Room may have changed: place waiting jobs, and update the others."""
    serve_queue(state)
    for job in (*_waiting_jobs(state), *(j for j in state.jobs.values() if j.lacks_standby)):
        state.touch(job)


def serve_queue(state: FakeState) -> None:
    """Give places to the jobs that wait."""
    placing.serve(
        _waiting_jobs(state),
        nodes=partial(node_views, state),
        request_of=partial(_waiting_request, state),
        grant=partial(_grant, state),
    )


def _waiting_jobs(state: FakeState) -> list[Job]:
    """The waiting jobs in the order of their turns."""
    waiting = [
        (job.waiting.queue_key, job) for job in state.jobs.values() if job.waiting is not None
    ]
    return [job for _, job in sorted(waiting, key=lambda one: one[0])]


def _grant(state: FakeState, job: Job, places: Mapping[int, placing.Place]) -> None:
    assert job.waiting is not None
    order = job.waiting.order
    for slot, place in places.items():
        node = state.nodes[place.node]
        devices = tuple(node.devices[index] for index in place.devices)
        pods.create(state, job, slot, node=node, devices=devices, generation=order.generation)
    refs = {slot: _ref(job, slot) for slot in sorted(order.slots)}
    job.placement = Placement(generation=order.generation, pods=refs)
    job.waiting = None
    # Only now: an order that is repeated in vain must not wake its own worker.
    for changed in (job, *_waiting_jobs(state)):
        state.touch(changed)


def _waiting_request(
    state: FakeState, job: Job, all_views: Sequence[NodeView]
) -> placing.PlaceRequest:
    assert job.waiting is not None
    request = _request(state, job, job.waiting.order, all_views)
    return replace(request, has_removed_old=job.waiting.has_removed_old)


def _request(
    state: FakeState, job: Job, order: PlaceOrder, all_views: Sequence[NodeView]
) -> placing.PlaceRequest:
    return placing.PlaceRequest(
        order=order,
        job_nodes={slot: pod.node.name for slot, pod in job.pods.items()},
        leaving=_leaving(job),
        nodes=all_views,
        now=state.now,
    )


def _leaving(job: Job) -> list[placing.OldPod]:
    return [
        placing.OldPod(
            name=pod.name, node=pod.node.name, is_reachable=pod.node.answers, dead_at=pod.dead_at
        )
        for pod in job.leaving
    ]


def _ref(job: Job, slot: int) -> PodRef:
    pod = job.pods[slot]
    return PodRef(node=pod.node.name, uid=pod.uid)


def _answer(state: FakeState, job: Job, order: PlaceOrder) -> PlaceState:
    placement = job.placement
    if placement is None or placement.generation != order.generation:
        all_views = node_views(state)
        waiting = (_waiting_request(state, other, all_views) for other in _waiting_jobs(state))
        claims = placing.claims_before(job.id, waiting)
        return replace(_request(state, job, order, all_views), claims=claims).waiting_state()
    if not placement.is_ready:
        unready = _unready(job, placement)
        if unready:
            wait = WaitKind.POD_READY.of(unready[0])
            return PlaceState(placed=False, places=len(placement.pods), wait=wait)
        placement.is_ready = True
    spares = {
        slot: pod.stood_up_s
        for slot, pod in job.pods.items()
        if pod.generation == placement.generation and pod.stood_up_s is not None
    }
    places = len(placement.pods)
    return PlaceState(placed=True, pods=placement.pods, places=places, stood_up_s=spares)


def _unready(job: Job, placement: Placement) -> list[str]:
    """New pods that did not report yet. Kept ones were ready long ago."""
    new = [pod for pod in job.pods.values() if pod.generation == placement.generation]
    return [
        f"{pod.name} on {pod.node.name}" for pod in new if not (pod.is_ready and pod.node.answers)
    ]
