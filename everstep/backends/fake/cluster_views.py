"""Views of the state for the protocol: pods, nodes, facts that are true now. Reads, never changes.

A job may have thousands of pods: those in the same state share their `Processes`, and so their view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

from everstep.backends.fake.simulated.model import CachedViews, Job, Node, Pod, Processes
from everstep.backends.fake.simulated.training import InMemory, Training
from everstep.backends.rules import nodes
from everstep.core.facts import Fact
from everstep.core.spec import Accelerator
from everstep.core.world import DeviceUse, NodeView, PodState, PodView, RankSnapshot
from everstep.protocol.wire import RunProgress

NOTHING: Mapping[int, str] = {}
"""No device of a node is isolated."""


def cached_pod_views(job: Job, now: float) -> tuple[PodView, ...]:
    """`pod_views`, computed only after a change of the job or of the time."""
    if job.cached_views is None or (job.cached_views.version, job.cached_views.now) != (
        job.version,
        now,
    ):
        job.cached_views = CachedViews(version=job.version, now=now, pods=pod_views(job, now))
    return job.cached_views.pods


def pod_views(job: Job, now: float) -> tuple[PodView, ...]:
    """All pods of the job by their slots.

    Pods in a row whose views differ only in OWN_FIELDS share the rest.
    """
    views = []
    for _, group in groupby([job.pods[slot] for slot in sorted(job.pods)], key=_group):
        first, *rest = group
        view = pod_view(first, now)
        shared = view[OWN_FIELDS:]
        views += [view, *[_row(other.place + shared) for other in rest]]
    if job.training is not None and job.training.script.snapshot_every:
        views = [_with_snapshots(view, job, now) for view in views]
    return tuple(views)


def _with_snapshots(view: PodView, job: Job, now: float) -> PodView:
    """The view with what the memory of the pod holds: its own snapshots, and copies of its neighbour's."""
    pod = job.pods[view.slot]
    if pod.is_lost or pod.processes is None or not pod.node.answers:
        return view
    training = pod.processes.training
    held, node_rank = training.in_memory(now), training.node_ranks[pod.slot]
    has_neighbour = len(training.node_ranks) > 1
    return view._replace(
        snapshots=tuple(_snapshots(training, node_rank, held)),
        copies=tuple(_snapshots(training, node_rank - 1, held)) if has_neighbour else (),
    )


def _snapshots(
    training: Training, node_rank: int, held: Iterable[InMemory]
) -> Iterator[RankSnapshot]:
    """The snapshots of all ranks of a slot; the neighbour of the first slot is the last one."""
    size, count = len(training.node_ranks), training.ranks_per_slot
    first = node_rank % size * count
    for step, generation, at in held:
        for rank in range(first, first + count):
            yield RankSnapshot(step, rank, size * count, generation, at)


_row = partial(tuple.__new__, PodView)
"""Makes a view of all fields in their order: `PodView._make` without its check of their number."""

OWN_FIELDS = 3
"""Slot, node and uid are the pod's own; the fields after them are shared by a group."""


def _group(pod: Pod) -> Pod | tuple[Processes | None, bool, bool]:
    """A key that pods with the same view share; the pod itself if its view may be its own."""
    node, processes = pod.node, pod.processes
    if (
        pod.is_lost
        or node.shows_utilisation
        or not node.answers
        or (processes and pod.slot in processes.training.hangs)
    ):
        return pod
    return processes, pod.is_ready, not pod.devices


def pod_view(pod: Pod, now: float) -> PodView:
    """The pod as its agent reports it, or reported it last before it fell silent."""
    if pod.node.is_reported:
        return current_view(pod, now)
    last = pod.last_seen or PodView(
        slot=pod.slot, node=pod.node.name, uid=pod.uid, state=PodState.PENDING
    )
    return last._replace(state=PodState.UNREACHABLE, silent_since=pod.node.silent_since)


def current_view(pod: Pod, now: float) -> PodView:
    """The pod as its agent reports it, or would."""
    state, processes = _state(pod), pod.processes
    if processes is None:
        return PodView(slot=pod.slot, node=pod.node.name, uid=pod.uid, state=state)
    training, signs = processes.training, _signs(pod, processes, now)
    run = RunProgress(
        generation=processes.generation,
        started_at=processes.started_at,
        moved_at=signs.moved_at,
        io_at=signs.io_at,
        busy_at=signs.busy_at,
        counts={
            "schedule_count": processes.schedule_count,
            "process_start_count": processes.process_start_count,
        },
    )
    gained = training.gained(now)
    if gained > 0 and training.script.shows_steps and processes.has_start_order:
        step = training.step_at(now)
        run = run._replace(
            step=step,
            step_at=training.time_of(step),
            first_step_at=training.first_at,
            longest_gap_s=training.script.step_s if gained > 1 else 0.0,
        )
    return PodView(
        slot=pod.slot,
        node=pod.node.name,
        uid=pod.uid,
        state=state,
        run=run,
        exits=tuple(sorted(processes.exits.values(), key=lambda e: (e.at, e.rank))),
        ranks=processes.count,
        can=training.script.can,
        older_ranks=tuple(processes.older.items()),
        device_use=_device_use(pod, training),
    )


def _device_use(pod: Pod, training: Training) -> tuple[DeviceUse, ...]:
    """The use of its devices, while those of a rank that hangs are idle: there the pods differ by it."""
    if not any(still.is_idle for still in training.hangs.values()):
        return ()
    still = training.hangs.get(pod.slot)
    percent = 0.0 if still is not None and still.is_idle else 100.0
    return tuple(DeviceUse(device.index, percent, None, None) for device in pod.devices)


def has_started(pod: Pod, generation: int) -> bool:
    """Whether the agent of the pod reported the ranks of this generation as started."""
    if pod.node.is_reported:
        run: Processes | RunProgress | None = pod.processes
    else:
        run = None if pod.last_seen is None else pod.last_seen.run
    return run is not None and run.generation == generation and run.started_at is not None


def not_started(job: Job, slots: Iterable[int], generation: int) -> dict[int, str]:
    """The slots where this generation cannot start, with the reasons of their agents."""
    pods = ((slot, job.pods[slot]) for slot in slots if slot in job.pods)
    return {
        slot: processes.failed
        for slot, pod in pods
        if (processes := pod.processes) is not None
        and processes.failed is not None
        and processes.generation == generation
        and pod.node.answers
    }


def _state(pod: Pod) -> PodState:
    processes = pod.processes
    if pod.is_lost:
        return PodState.LOST
    if not pod.is_ready:
        return PodState.PENDING
    if processes is None:
        return PodState.STARTING
    if len(processes.exits) == processes.count:
        return PodState.EXITED
    if processes.is_ended:
        return PodState.STOPPED
    return PodState.STARTING if processes.started_at is None else PodState.RUNNING


class SignsOfLife(NamedTuple):
    """When ranks last moved, did I/O, and changed the use of their devices."""

    moved_at: float | None = None
    io_at: float | None = None
    busy_at: float | None = None


def _signs(pod: Pod, processes: Processes, now: float) -> SignsOfLife:
    """The signs of life. Everything moves until a rank halts; afterwards only the use of devices can."""
    started_at, training = processes.started_at, processes.training
    if started_at is None:
        return SignsOfLife()
    still = training.still_since(pod.slot, now)
    io_at = now if still is None or still.io_at is None else still.io_at
    return SignsOfLife(
        moved_at=_moved_at(pod, processes, started_at, now),
        io_at=max(io_at, started_at),
        busy_at=_busy_at(pod, now if still is None else still.at, started_at, now),
    )


def _moved_at(pod: Pod, processes: Processes, started_at: float, now: float) -> float | None:
    halted_at = processes.training.halted_at
    if not processes.is_alive:
        return halted_at
    if halted_at is None or any(device.varies for device in pod.devices):
        return now
    changes = (device.metric_at for device in pod.devices if device.metric_at is not None)
    return max(halted_at, started_at, *changes)


def _busy_at(pod: Pod, by_processes: float, started_at: float, now: float) -> float | None:
    """Utilisation that a fault line set counts; else devices are busy while their processes run."""
    if not pod.devices:
        return None
    shown_at = [now if d.varies else d.used_at for d in pod.devices if d.used_at is not None]
    return max(started_at, max(shown_at, default=by_processes))


def node_view(
    node: Node,
    *,
    reason: str | None,
    devices: Mapping[int, str] = NOTHING,
    accelerator: Accelerator,
    now: float,
) -> NodeView:
    """The node with its devices; `reason` says why it is isolated, `devices` the same of each device."""
    made_of = None if devices else _made_of(node, reason, accelerator)
    if made_of is None:
        return _node_view(node, reason=reason, devices=devices, accelerator=accelerator, now=now)
    if node.cached_view is None or node.cached_view[0] != made_of:
        view = _node_view(node, reason=reason, devices=devices, accelerator=accelerator, now=now)
        node.cached_view = (made_of, view)
    return node.cached_view[1]


def _made_of(node: Node, reason: str | None, accelerator: Accelerator) -> list[object] | None:
    """Everything that a view of the node shows. None: it changes with time, as a device heals.

    A list and loops: ten thousand nodes are looked at for each place.
    """
    made_of: list[object] = [reason, accelerator, node.service, node.condition, node.maintenance]
    for pod in node.pods:
        made_of.append(pod)
        made_of.append(pod.dead_at)
    for device in node.devices:
        if device.heals_at is not None:
            return None
        made_of.append(device.pod)
        if device.faults:
            made_of.extend(device.faults.values())
    return made_of


def _node_view(
    node: Node,
    *,
    reason: str | None,
    devices: Mapping[int, str],
    accelerator: Accelerator,
    now: float,
) -> NodeView:
    without_devices = sum(1 for pod in node.pods if not pod.devices and pod.dead_at is None)
    return nodes.view(
        node,
        isolated=reason,
        isolated_devices=devices,
        holders={device.index: device.pod.job.id for device in node.devices if device.pod},
        jobs=(pod.job.id for pod in node.pods),
        slots_free=node.slots - without_devices,
        accelerator=accelerator,
        now=now,
    )


def present_facts(job: Job) -> tuple[Fact, ...]:
    """The current faults of the job's nodes, devices and storage."""
    facts = [replace(fact, slot=pod.slot) for pod, fact in _present(job)]
    if job.unwritable is not None:
        facts.append(job.unwritable)
    return tuple(sorted(facts, key=lambda fact: fact.at))


def _present(job: Job) -> Iterator[tuple[Pod, Fact]]:
    for pod in job.pods.values():
        for fact in pod.node.facts:
            yield pod, fact
        for device in pod.devices:
            if device.faults and pod.node.answers:
                for fact in device.faults.values():
                    yield pod, fact


def faults_held(pod: Pod) -> list[Fact]:
    """The faults of the devices that the pod holds."""
    return [fact for device in pod.devices if device.faults for fact in device.faults.values()]
