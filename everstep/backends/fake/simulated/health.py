"""Devices and other conditions of nodes: faults appear, heal, are cleared, are told to who is there."""

from __future__ import annotations

from dataclasses import replace

from everstep.backends.fake.simulated.model import Device, Heal, Node, Pod, Precheck, Service
from everstep.backends.fake.simulated.state import State
from everstep.core.facts import Detail, Fact
from everstep.core.world import HealState
from everstep.faults import told


def break_device(state: State, node: Node, device: Device, code: str, **details: Detail) -> None:
    """The device shows a fault. A code it already shows is no news."""
    if code in device.faults:
        return
    where = f"{node.name}/{device.index}"
    fact = told(
        state.seen(
            "device.fault",
            node=node.name,
            device=device.index,
            code=code,
            message=f"{code} on {where}",
            details=details,
        )
    )
    device.faults[code] = fact
    if device.heal is not None and device.heal.state == "failed":
        device.heal = None  # a new fault is asked anew whether it heals
    _tell_holder(state, node, device, fact)


def _tell_holder(state: State, node: Node, device: Device, fact: Fact) -> None:
    pod = device.pod
    if pod is not None and pod.job.pods.get(pod.slot) is pod:
        state.tell(pod.job, replace(fact, slot=pod.slot), through=node)


def heal(state: State, node: Node, device: Device) -> HealState:
    """Begin to heal, or say how far it is."""
    if not device.faults:
        return HealState(state="healed")
    if node.is_down:
        return HealState(state="failed", message=f"{node.name} is down")
    if not node.answers:
        return HealState(state="healing", message=f"{node.name} does not answer")
    if device.heal is None:
        takes_s = state.settings.heal_s if device.heal_s is None else device.heal_s
        timer = state.time.after(takes_s, lambda: _heal_ended(state, node, device))
        device.heal = Heal(timer=timer)
        state.note(f"heal {node.name}/{device.index}")
    stubborn = [code for code, fault in device.faults.items() if not _heals(fault)]
    message = f"{stubborn[0]} does not heal" if device.heal.state == "failed" else ""
    return HealState(state=device.heal.state, message=message)


def _heals(fault: Fact) -> bool:
    return fault.details.get("heals") is not False


def _heal_ended(state: State, node: Node, device: Device) -> None:
    if all(_heals(fault) for fault in device.faults.values()):
        mend_device(state, node, device)
        return
    assert device.heal is not None
    device.heal.state = "failed"
    _touch_jobs(state, node)


def mend_device(state: State, node: Node, device: Device) -> None:
    """The device is sound again."""
    if device.heal is not None:
        device.heal.timer.cancel()
        device.heal = None
    if not device.faults:
        return
    device.faults.clear()
    where = f"{node.name}/{device.index}"
    fact = state.seen(
        "device.healed", node=node.name, device=device.index, message=f"{where} is sound again"
    )
    _tell_holder(state, node, device, fact)
    _touch_jobs(state, node)
    state.capacity_changed()


def _touch_jobs(state: State, node: Node) -> None:
    for job in state.jobs.values():
        # Any job may wait for the answer, also one that has no pod here at the moment.
        if job.asking is not None or any(pod.node is node for pod in job.pods.values()):
            state.touch(job)


# --- maintenance and checks ---------------------------------------------------------------------


def announce_maintenance(state: State, node: Node) -> None:
    """The node will be serviced: no new pods, and whoever is there is told."""
    if node.maintenance is None:
        message = f"{node.name} is about to be serviced"
        node.maintenance = state.seen("maintenance.notice", node=node.name, message=message)
        state.tell_node(node, node.maintenance)


def check_environment(state: State, pod: Pod, generation: int) -> Precheck:
    """Begin the checks of a pod, or say how far they are. Once per generation and pod, until it passed."""
    if pod.is_checked:
        return Precheck(failures=())
    key = (generation, pod.uid)
    known = pod.job.prechecks.get(key)
    if known is None:
        known = pod.job.prechecks[key] = Precheck()
        state.note(f"check {pod.name} on {pod.node.name} (g{generation})")
        state.time.after(state.settings.precheck_s, lambda: _checked(state, pod, generation, known))
    return known


def _checked(state: State, pod: Pod, generation: int, precheck: Precheck) -> None:
    failing = pod.node.prechecks if pod.node.service is Service.READY else {}
    precheck.failures = tuple(
        replace(
            state.seen_of(pod, f"precheck.{check}", generation=generation, hardware=hardware),
            message=f"{check} failed on {pod.node.name}",
        )
        for check, hardware in failing.items()
    )
    pod.is_checked = not precheck.failures
    state.touch(pod.job)
