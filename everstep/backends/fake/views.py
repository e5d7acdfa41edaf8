"""The state as the protocol shows it: a pod, a node, a job's observation. Reads, never changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from everstep.backends.fake.model import Device, Job, Node, Pod, Processes, Service
from everstep.core.facts import Fact
from everstep.core.spec import Accelerator
from everstep.core.world import DeviceView, NodeView, PodState, PodView


def pod_view(pod: Pod, now: float) -> PodView:
    """The pod as its agent tells it; of a silent one, what was last heard."""
    silent_since = pod.node.silent_since
    if pod.node.is_down or silent_since is None:
        return heard(pod, now)
    last = pod.last_seen or PodView(
        slot=pod.slot, node=pod.node.name, uid=pod.uid, state=PodState.PENDING
    )
    return replace(last, state=PodState.UNREACHABLE, silent_since=silent_since)


def heard(pod: Pod, now: float) -> PodView:
    """What the agent of the pod says, or would."""
    about = {} if pod.processes is None else _about(pod, pod.processes, now)
    return PodView(slot=pod.slot, node=pod.node.name, uid=pod.uid, state=_state(pod), **about)


def _state(pod: Pod) -> PodState:
    processes = pod.processes
    if pod.is_lost:
        return PodState.LOST
    if not pod.is_ready:
        return PodState.PENDING
    if processes is None:
        return PodState.STARTING
    if len(processes.exits) == len(processes.ranks):
        return PodState.EXITED
    if processes.is_ended:
        return PodState.STOPPED
    return PodState.STARTING if processes.started_at is None else PodState.RUNNING


def _about(pod: Pod, processes: Processes, now: float) -> dict[str, Any]:
    training = processes.training
    script = training.script
    fields: dict[str, Any] = {
        "generation": processes.generation,
        "started_at": processes.started_at,
        "exits": tuple(sorted(processes.exits.values(), key=lambda e: (e.at, e.rank))),
        "ranks": len(processes.ranks),
        "moved_at": _moved_at(pod, processes, now),
        "io_at": _io_at(pod, processes, now),
        "busy_at": _busy_at(pod, processes, now),
        "library": script.uses_library,
        "schedule_count": processes.told.schedule_count,
        "process_start_count": processes.told.process_start_count,
    }
    gained = training.gained(now)
    if gained > 0 and script.shows_steps:
        fields["step"] = training.step_at(now)
        fields["step_at"] = training.time_of(training.step_at(now))
        fields["first_step_at"] = training.first_at
        fields["longest_gap_s"] = script.step_s if gained > 1 else 0.0
    return fields


def _moved_at(pod: Pod, processes: Processes, now: float) -> float | None:
    """While ranks step, or get ready to, everything moves; afterwards only what devices show."""
    if processes.started_at is None:
        return None
    if not processes.is_alive:
        return processes.training.halted_at
    if any(device.varies for device in pod.devices):
        return now
    halted_at = processes.training.halted_at
    changes = (device.metric_at for device in pod.devices if device.metric_at is not None)
    return now if halted_at is None else max(halted_at, *changes, processes.started_at)


def _io_at(pod: Pod, processes: Processes, now: float) -> float | None:
    still = processes.training.still_since(pod.slot)
    io_at = now if still is None or still.io_at is None else still.io_at
    return _since_start(processes, io_at)


def _busy_at(pod: Pod, processes: Processes, now: float) -> float | None:
    """Those that were told what to show speak for all; else they do what their processes do."""
    if not pod.devices:
        return None
    still = processes.training.still_since(pod.slot)
    by_processes = now if still is None else still.at
    told = [now if d.varies else d.used_at for d in pod.devices if d.used_at is not None]
    return _since_start(processes, max(told, default=by_processes))


def _since_start(processes: Processes, at: float) -> float | None:
    return None if processes.started_at is None else max(at, processes.started_at)


def node_view(node: Node, *, reason: str | None, accelerator: Accelerator) -> NodeView:
    """The node with its devices; `reason` says why it is isolated, None that it is not."""
    without_devices = sum(1 for pod in node.pods if not pod.devices and pod.dead_at is None)
    return NodeView(
        name=node.name,
        ready=node.service is Service.READY,
        isolated=reason is not None,
        reason=reason or _condition(node),
        devices=tuple(_device_view(node, device) for device in node.devices),
        jobs=tuple(sorted({pod.job.id for pod in node.pods})),
        accelerator=accelerator if node.devices else "none",
        slots_free=max(0, node.slots - without_devices) if node.is_open else 0,
    )


def _condition(node: Node) -> str:
    fact = node.condition or node.maintenance
    return fact.message if fact is not None else ""


def _device_view(node: Node, device: Device) -> DeviceView:
    return DeviceView(
        index=device.index,
        health=_health(node, device),
        codes=tuple(device.faults),
        job=device.pod.job.id if device.pod else None,
    )


def _health(node: Node, device: Device) -> Literal["ok", "healing", "faulty", "isolated"]:
    if device.heal is not None and device.heal.state == "healing":
        return "healing"
    if device.is_faulty:
        return "faulty"
    return "ok" if node.maintenance is None else "isolated"


def present_facts(job: Job) -> tuple[Fact, ...]:
    """The faults that are there now under this job, as they were told or would be."""
    found = [fact for pod in job.pods.values() for fact in _present_on(pod)]
    if job.unwritable is not None:
        found.append(job.unwritable)
    return tuple(sorted(found, key=lambda fact: fact.at))


def _present_on(pod: Pod) -> Iterator[Fact]:
    node = pod.node
    for fact in (node.condition, node.maintenance):
        if fact is not None:
            yield replace(fact, slot=pod.slot)
    if node.answers:
        yield from faults_held(pod)


def faults_held(pod: Pod) -> Iterator[Fact]:
    """The faults of the devices that the pod holds."""
    for device in pod.devices:
        for fact in device.faults.values():
            yield replace(fact, slot=pod.slot)
