"""Faults on demand that are the same on every cluster: of nodes, devices, checks, notices.

`fault_lines` parses a line, `FAULTS` has the function of its name, and that function changes a `Scene`: the
nodes and jobs of one cluster, which each cluster implements. A function changes a node, stores it with
`keep`, adds the facts that a real fault would cause, and then calls `changed`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from everstep.backends.fault_lines import FaultLine
from everstep.backends.rules.nodes import Device, Node
from everstep.core.facts import Fact
from everstep.core.world import HealState
from everstep.faults.meanings import with_meaning

N = TypeVar("N", bound=Node)


class Scene(ABC, Generic[N]):
    """The parts of a cluster that faults change, and the jobs that get facts of them."""

    @property
    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def nodes(self) -> Mapping[str, N]: ...

    @abstractmethod
    def add_node(self, name: str) -> None: ...

    @abstractmethod
    def keep(self, node: N) -> None:
        """Store a changed node."""

    @abstractmethod
    def new_fact(self, kind: str, **details: Any) -> Fact:
        """A new fact of the cluster itself, not yet added to any job."""

    @abstractmethod
    def add_node_fact(self, node: N, fact: Fact, *, device: int | None = None) -> None:
        """Add the fact to every job on this node; of a device, to the job that holds it."""

    @abstractmethod
    def lose(self, node: N, *, proven: bool) -> None:
        """Called before a node goes out of service. End what runs there, or (not proven) cut it off."""

    @abstractmethod
    def changed(self, node: N | None) -> None:
        """Called after a node was lost or is back; None: there may be more room."""

    @abstractmethod
    def end_rehearsals(self, node: N, device: int | None) -> None:
        """End what else fault lines simulate on the node, or on the device: silence, utilisation."""

    @abstractmethod
    def job(self, job_id: str) -> str:
        """Return this job ID. Raises ValueError if there is no such job."""

    @abstractmethod
    def add_job_fact(self, job: str, fact: Fact) -> None: ...

    @abstractmethod
    def unwritable(self, job: str) -> Fact | None:
        """The fact that the job's storage takes nothing any more; None if it does."""

    @abstractmethod
    def set_unwritable(self, job: str, fact: Fact | None) -> None: ...

    # -- finding ---------------------------------------------------------------------------------

    def node(self, name: str) -> N:
        nodes = self.nodes()
        if name not in nodes:
            raise ValueError(f"there is no node {name!r}; try one of {', '.join(nodes)}")
        return nodes[name]

    def device(self, name: str, index: int) -> tuple[N, Device]:
        """The device, with its node."""
        node = self.node(name)
        if not 0 <= index < len(node.devices):
            raise ValueError(f"{name} has no device {index}; it has {len(node.devices)}")
        return node, node.devices[index]


# -- Nodes --------------------------------------------------------------------------------------


def node_down(scene: Scene[N], fault: FaultLine) -> None:
    """Take the node out of service. With `partition` it is only cut off: its processes live on."""
    node, cut_off = scene.node(fault.words[0]), "partition" in fault.options
    if node.is_down or (cut_off and node.service == "cut_off"):
        return
    scene.lose(node, proven=not cut_off)
    kind, message = ("node.not_ready", "is cut off") if cut_off else ("node.down", "is down")
    node.service, node.since = ("cut_off" if cut_off else "down"), scene.now
    node.condition = scene.new_fact(
        kind, node=node.name, message=f"{node.name} {message}", details={"proven": not cut_off}
    )
    scene.keep(node)
    scene.add_node_fact(node, node.condition)
    scene.changed(node)


def node_up(scene: Scene[N], fault: FaultLine) -> None:
    _bring_up(scene, scene.node(fault.words[0]))


def _bring_up(scene: Scene[N], node: N) -> None:
    """Return the node to service. Pods of a node that was down stay lost."""
    if node.service == "ready":
        return
    node.service, node.since, node.condition = "ready", None, None
    scene.keep(node)
    fact = scene.new_fact("node.up", node=node.name, message=f"{node.name} is back")
    scene.add_node_fact(node, fact)
    scene.changed(node)


def slow_teardown(scene: Scene[N], fault: FaultLine) -> None:
    node = scene.node(fault.words[0])
    node.teardown_s = fault.seconds(1)
    scene.keep(node)


def maintenance(scene: Scene[N], fault: FaultLine) -> None:
    """Announce maintenance of the node: it gets no new pods, and its jobs get the fact."""
    node = scene.node(fault.words[0])
    if node.maintenance is None:
        message = f"{node.name} is about to be serviced"
        node.maintenance = scene.new_fact("maintenance.notice", node=node.name, message=message)
        scene.keep(node)
        scene.add_node_fact(node, node.maintenance)


def add_node(scene: Scene[N], fault: FaultLine) -> None:
    if fault.words[0] not in scene.nodes():
        scene.add_node(fault.words[0])
        scene.changed(None)


def precheck(scene: Scene[N], fault: FaultLine) -> None:
    node, check = scene.node(fault.words[0]), fault.words[1]
    if "clear" in fault.options:
        node.prechecks.pop(check, None)
    else:
        node.prechecks[check] = "hardware" in fault.options
    scene.keep(node)


def clear(scene: Scene[N], fault: FaultLine) -> None:
    """Clear every fault of one device; without an index, of the node and all its devices."""
    if len(fault.words) > 1:
        _clear_device(scene, *scene.device(fault.words[0], fault.number(1)))
        return
    node = scene.node(fault.words[0])
    node.prechecks.clear()
    node.maintenance, node.teardown_s = None, 0.0
    scene.keep(node)
    _bring_up(scene, node)
    scene.end_rehearsals(node, None)
    for device in node.devices:
        device.heal_s = None
        _clear_device(scene, node, device)
    scene.changed(None)


def _clear_device(scene: Scene[N], node: N, device: Device) -> None:
    scene.end_rehearsals(node, device.index)
    mend(scene, node, device)


# -- Devices ------------------------------------------------------------------------------------


def break_device(scene: Scene[N], fault: FaultLine) -> None:
    """Add a fault code to the device. Nothing happens if it has the code already."""
    (node, device), code = scene.device(fault.words[0], fault.number(1)), fault.words[2]
    if code in device.faults:
        return
    fact = scene.new_fact(
        "device.fault",
        node=node.name,
        device=device.index,
        code=code,
        message=f"{code} on {node.name}/{device.index}",
        details=fault.device_details(),
    )
    device.faults[code] = with_meaning(fact)
    if device.heals_at is not None and device.heals_at <= scene.now:
        device.heals_at = None  # a new fault may heal where the last one did not
    scene.keep(node)
    scene.add_node_fact(node, device.faults[code], device=device.index)


def set_heal_time(scene: Scene[N], fault: FaultLine) -> None:
    node, device = scene.device(fault.words[0], fault.number(1))
    device.heal_s = fault.seconds(2)
    scene.keep(node)


def heal(scene: Scene[N], node: N, device: Device, *, takes_s: float) -> HealState:
    """Begin to heal the device, or return how far that is.

    `takes_s`: where the device has no time of its own.
    """
    if not device.faults:
        return HealState(state="healed")
    if node.is_down:
        return HealState(state="failed", message=f"{node.name} is down")
    if not node.answers:
        return HealState(state="healing", message=f"{node.name} does not answer")
    takes_s = takes_s if device.heal_s is None else device.heal_s
    if device.heals_at is None:
        device.heals_at = round(scene.now + takes_s, 6)
        scene.keep(node)
    if scene.now < device.heals_at:
        return HealState(state="healing", began_at=device.heals_at - takes_s)
    return end_heal(scene, node, device)


def end_heal(scene: Scene[N], node: N, device: Device) -> HealState:
    """End the time to heal. A device that has not healed never will, unless another fault comes."""
    if device.stubborn is not None:
        return HealState(state="failed", message=f"{device.stubborn} does not heal")
    mend(scene, node, device)
    return HealState(state="healed")


def mend(scene: Scene[N], node: N, device: Device) -> None:
    """Clear the faults of a device, and add the fact that it healed to the job that holds it."""
    was_broken = bool(device.faults)
    device.heals_at = None
    device.faults.clear()
    scene.keep(node)
    if was_broken:
        message = f"{node.name}/{device.index} is sound again"
        healed = scene.new_fact(
            "device.healed", node=node.name, device=device.index, message=message
        )
        scene.add_node_fact(node, healed, device=device.index)
        scene.changed(node)


# -- Jobs ---------------------------------------------------------------------------------------


def preempt(scene: Scene[N], fault: FaultLine) -> None:
    """Add the notice of a preemption; what runs goes on until the job itself makes room."""
    job = scene.job(fault.words[0])
    message = "a more important job needs the place"
    scene.add_job_fact(job, scene.new_fact("job.preempted", job=job, message=message))


def storage(scene: Scene[N], fault: FaultLine) -> None:
    """Report the storage of a job as unwritable, or as writable again; what is on it stays as it is."""
    job = scene.job(fault.words[0])
    breaks = fault.one_of(("unwritable", "writable")) != "writable"
    if breaks == (scene.unwritable(job) is not None):
        return
    kind = "storage.unwritable" if breaks else "storage.writable"
    state = kind.removeprefix("storage.")
    fact = scene.new_fact(kind, job=job, message=f"the storage of {job} is {state}")
    scene.set_unwritable(job, fact if breaks else None)
    scene.add_job_fact(job, fact)


FAULTS: Mapping[str, tuple[str, Callable[[Any, FaultLine], None]]] = {
    "node-down": ("NODE [partition]", node_down),
    "node-up": ("NODE", node_up),
    "device": (
        "NODE INDEX CODE [warning|minor|major|critical] [heals|no-heals] [user|not-user]",
        break_device,
    ),
    "clear": ("NODE [INDEX]", clear),
    "precheck": ("NODE CHECK [hardware] [clear]", precheck),
    "preempt": ("JOB", preempt),
    "slow-teardown": ("NODE SECONDS", slow_teardown),
    "storage": ("JOB [unwritable|writable]", storage),
    "heal-takes": ("NODE INDEX SECONDS", set_heal_time),
    "maintenance": ("NODE", maintenance),
    "add-node": ("NAME", add_node),
}
"""Faults by name: how each is written, and what it does. Each cluster has more of its own."""
