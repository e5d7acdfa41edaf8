"""Nodes and their devices: their service, their faults, and how they are shown to users.

Plain mutable state of a cluster that simulates it. Each cluster stores it in its own way, and may add fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from everstep.core.facts import Fact
from everstep.core.spec import Accelerator
from everstep.core.world import DeviceView, NodeView

Service = Literal["ready", "cut_off", "down"]
"""What the cluster says of a node. Cut off: not ready, nothing proven. Down: proven, nothing runs there."""


@dataclass(slots=True, eq=False, kw_only=True)
class Device:
    """One device of a node. `faults` maps each code that it shows to the fact that reported it."""

    index: int
    faults: dict[str, Fact] = field(default_factory=dict)
    heal_s: float | None = None  # how long it takes to repair itself; None: as long as all do
    heals_at: float | None = None  # when its attempt to repair itself ends, or ended in vain

    @property
    def is_faulty(self) -> bool:
        if not self.faults:  # nearly always, and often asked
            return False
        return any(fault.details.get("severity") != "warning" for fault in self.faults.values())

    @property
    def stubborn(self) -> str | None:
        """A code that does not heal, if it shows one."""
        codes = (code for code, f in self.faults.items() if f.details.get("heals") is False)
        return next(codes, None)


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A machine. `condition` is the fact that reported why it is not in service."""

    name: str
    devices: Sequence[Device] = ()
    service: Service = "ready"
    since: float | None = None  # when it went out of service
    condition: Fact | None = None
    maintenance: Fact | None = None  # the fact that announced it
    prechecks: dict[str, bool] = field(default_factory=dict)  # failing check -> hardware's fault
    teardown_s: float = 0.0

    @property
    def is_down(self) -> bool:
        return self.service == "down"

    @property
    def answers(self) -> bool:
        return self.service == "ready"

    @property
    def is_open(self) -> bool:
        """Whether the cluster would put new pods here, isolation aside."""
        return self.service == "ready" and self.maintenance is None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts about it that are true now."""
        if self.condition is None and self.maintenance is None:  # nearly always, and often asked
            return ()
        return tuple([fact for fact in (self.condition, self.maintenance) if fact is not None])


def faults_of(node: Node, devices: Iterable[int]) -> Iterator[Fact]:
    """The faults of these devices of the node. A device that the machine no longer has shows none."""
    for index in devices:
        if index < len(node.devices):
            yield from node.devices[index].faults.values()


def view(
    node: Node,
    *,
    isolated: str | None,
    isolated_devices: Mapping[int, str],
    holders: Mapping[int, str],
    jobs: Iterable[str],
    slots_free: int,
    accelerator: Accelerator,
    now: float,
) -> NodeView:
    """The node as users see it.

    `isolated`: why the node is isolated, `isolated_devices`: why a device is; `holders`: the job that has a
    device, by its index.
    """
    return NodeView(
        name=node.name,
        ready=node.service == "ready",
        isolated=isolated is not None,
        reason=isolated or next((fact.message for fact in node.facts), ""),
        maintenance="" if node.maintenance is None else node.maintenance.message,
        devices=tuple(
            [
                _device_view(
                    d.index,
                    _health(node, d, now, closed=d.index in isolated_devices),
                    tuple(d.faults),
                    holders.get(d.index),
                    isolated_devices.get(d.index),
                )
                for d in node.devices
            ]
        ),
        jobs=tuple(sorted(set(jobs))),
        accelerator=accelerator if node.devices else "none",
        slots_free=max(0, slots_free) if node.is_open else 0,
        lists_codes=True,
    )


Health = Literal["ok", "healing", "faulty", "isolated"]


@lru_cache(maxsize=1_000)
def _device_view(
    index: int, health: Health, codes: tuple[str, ...], job: str | None, isolated: str | None
) -> DeviceView:
    """A shared value: of thousands of devices nearly all look the same."""
    return DeviceView(index=index, health=health, codes=codes, job=job, isolated=isolated)


def device_of(name: str) -> tuple[str, int] | None:
    """The node and the index that `NODE/3` stands for; None: this is the name of a node."""
    node, _, index = name.rpartition("/")
    return (node, int(index)) if node and index.isdecimal() and index.isascii() else None


def devices_by_node(isolated: Mapping[str, str]) -> Mapping[str, Mapping[int, str]]:
    """The devices among isolated nodes and devices: why each is isolated, by node and index."""
    by_node: dict[str, dict[int, str]] = {}
    for name, reason in isolated.items():
        if device := device_of(name):
            by_node.setdefault(device[0], {})[device[1]] = reason
    return by_node


def _health(node: Node, device: Device, now: float, *, closed: bool) -> Health:
    if device.heals_at is not None and now < device.heals_at:
        return "healing"
    if device.is_faulty:
        return "faulty"
    return "ok" if node.maintenance is None and not closed else "isolated"
