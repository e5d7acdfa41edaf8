"""Pods that are created, lost, removed; and nodes that fall silent, go down or come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everstep.backends.fake import cluster_views
from everstep.backends.fake.simulated import processes
from everstep.backends.fake.simulated.model import Device, Job, Node, Pod
from everstep.backends.fake.simulated.state import FakeState
from everstep.core.world import PodState

ENDED = frozenset({PodState.PENDING, PodState.STOPPED, PodState.EXITED, PodState.LOST})
"""Last reported states of a pod that prove its processes gone."""


def create(
    state: FakeState, job: Job, slot: int, *, node: Node, devices: Sequence[Device], generation: int
) -> Pod:
    """Create a pod. Faults that its node has already are reported to the job as new ones."""
    uid = f"{job.id}-{slot}-g{generation}"
    pod = job.pods[slot] = _add_pod(
        state, job, slot, uid, node=node, devices=devices, generation=generation
    )
    state.note(f"create pod {pod.name} on {node.name} (g{generation})")
    _report_faults(state, pod)
    return pod


def stand_by(
    state: FakeState,
    job: Job,
    slot: int,
    *,
    node: Node,
    devices: Sequence[Device],
    is_spare: bool,
) -> None:
    """Create a standby beside the pod of the slot. No fact about it is reported."""
    job.standbys_made += 1
    uid = f"{job.id}-{slot}-s{job.standbys_made}"
    pod = job.standbys[slot] = _add_pod(
        state, job, slot, uid, node=node, devices=devices, generation=job.newest
    )
    if is_spare:
        pod.stood_up_s = state.settings.pod_s
    state.note(f"stand by pod {pod.name} on {node.name} (g{pod.generation})")


def stand_by_for(pod: Pod, slot: int) -> None:
    """Let a standby stand by for another slot."""
    del pod.job.standbys[pod.slot]
    pod.give_slot(slot)
    pod.job.standbys[slot] = pod


def take(state: FakeState, pod: Pod, slot: int, generation: int) -> None:
    """Let a standby become the pod of the slot."""
    del pod.job.standbys[pod.slot]
    pod.give_slot(slot)
    pod.job.pods[slot] = pod
    pod.generation = generation
    state.note(f"take pod {pod.name} on {pod.node.name} (g{generation})")
    _report_faults(state, pod)
    state.touch(pod.job)


def _add_pod(
    state: FakeState,
    job: Job,
    slot: int,
    uid: str,
    *,
    node: Node,
    devices: Sequence[Device],
    generation: int,
) -> Pod:
    pod = Pod(
        job=job,
        slot=slot,
        uid=uid,
        generation=generation,
        node=node,
        devices=tuple(devices),
    )
    for device in devices:
        device.pod = pod
    node.pods.append(pod)
    state.time.after(state.settings.pod_s, lambda: _ready(state, pod))
    return pod


def _report_faults(state: FakeState, pod: Pod) -> None:
    for fact in cluster_views.faults_held(pod):
        state.report(pod.job, replace(fact, slot=pod.slot), through=pod.node)


def _ready(state: FakeState, pod: Pod) -> None:
    if not pod.is_lost:
        pod.is_ready = True
        state.touch(pod.job)


def lose(state: FakeState, pod: Pod) -> None:
    """Let the container be gone, and its processes with it."""
    if not pod.is_lost:
        processes.end(state, pod)
        pod.is_lost = True
        state.touch(pod.job)


def remove(state: FakeState, going: Sequence[Pod]) -> None:
    """Order pods to end. A silent node gets the order when it is back."""
    for pod in going:
        for by_slot in (pod.job.pods, pod.job.standbys):
            if by_slot.get(pod.slot) is pod:
                del by_slot[pod.slot]
        pod.job.leaving.append(pod)
        state.note(f"remove pod {pod.name} from {pod.node.name} (g{pod.generation})")
        state.touch(pod.job)
        _carry_out_removal(state, pod)
    if going:
        state.capacity_changed()


def _carry_out_removal(state: FakeState, pod: Pod) -> None:
    if pod.node.is_down:
        give_up(state, pod)
    elif pod.node.answers and pod.dead_at is None:
        processes.end(state, pod)
        _free_devices(pod)
        pod.dead_at = state.now
        if pod.node.teardown_s > 0:
            state.time.after(pod.node.teardown_s, lambda: _finish_removal(state, pod))
        else:
            give_up(state, pod)


def _finish_removal(state: FakeState, pod: Pod) -> None:
    give_up(state, pod)
    state.capacity_changed()


def _free_devices(pod: Pod) -> None:
    """Free the pod's devices, except those that another pod has by now."""
    for device in pod.devices:
        if device.pod is pod:
            device.pod = None


def give_up(state: FakeState, pod: Pod) -> None:
    """Drop a leaving pod: nothing of it is left, or nothing of it can matter any more.

    The caller reports the freed capacity, once for all pods that it drops.
    """
    if pod not in pod.job.leaving:
        return
    pod.job.leaving.remove(pod)
    pod.node.pods.remove(pod)
    _free_devices(pod)
    state.touch(pod.job)


# --- nodes --------------------------------------------------------------------------------------


def silence(state: FakeState, node: Node) -> None:
    """Let the agents of the node stop answering without a reason. The training goes on."""
    if node.silenced_since is None and not node.is_down:
        _keep_last_reports(state, node)
        node.silenced_since = state.now
        touch_all(state, node)


def unsilence(state: FakeState, node: Node) -> None:
    if node.silenced_since is not None:
        node.silenced_since = None
        _resume_reports(state, node)


def lose_node(state: FakeState, node: Node, *, proven: bool) -> None:
    """End what runs on a node that is lost; the caller marks the node. Not `proven`: it is only cut off."""
    if not proven:
        _keep_last_reports(state, node)
        return
    for pod in node.pods:
        lose(state, pod)
    node.silenced_since = None
    node.unreported.clear()


def node_changed(state: FakeState, node: Node) -> None:
    """Wake the jobs on the node, which may wait for this change of it or of a device."""
    if node.service == "ready":
        _resume_reports(state, node)
        return
    touch_all(state, node)
    leaving = [pod for pod in node.pods if node.is_down and pod in pod.job.leaving]
    for pod in leaving:
        give_up(state, pod)
    if leaving:
        state.capacity_changed()


def _keep_last_reports(state: FakeState, node: Node) -> None:
    """Keep the last report of each agent: nothing newer is known of a silent node."""
    if node.answers:
        for pod in node.pods:
            pod.last_seen = cluster_views.current_view(pod, state.now)


def _resume_reports(state: FakeState, node: Node) -> None:
    """Let the agents answer again: they report what was missed and get pending orders."""
    if node.answers:
        unreported, node.unreported = node.unreported, []
        for job, fact in unreported:
            state.report(job, fact)
        for pod in tuple(node.pods):
            pod.last_seen = None
            if pod in pod.job.leaving:
                _carry_out_removal(state, pod)
    touch_all(state, node)
    state.capacity_changed()


def touch_all(state: FakeState, node: Node) -> None:
    """Wake every job with a pod on the node."""
    for pod in node.pods:
        state.touch(pod.job)


# --- proof --------------------------------------------------------------------------------------


def is_proven_stopped(pod: Pod) -> bool:
    """Whether it is known, not guessed, that nothing of the pod's processes runs any more."""
    if pod.node.answers:
        return not pod.has_living_processes
    if pod.node.is_down:
        return True
    # None: the pod came after its node fell silent, so its agent never got an order.
    return pod.last_seen is None or pod.last_seen.state in ENDED or pod.last_seen.generation == 0
