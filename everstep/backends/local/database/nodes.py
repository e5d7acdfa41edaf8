"""Nodes and their devices as the books have them. Each function is part of a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from everstep.agent.observing import hardware
from everstep.backends.local.database import books, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db, Service
from everstep.backends.local.settings import LocalSettings
from everstep.core.facts import Fact
from everstep.core.world import DeviceView, NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A name that pods live on, and what the cluster says of it."""

    name: str
    devices: int
    isolated: str | None  # why
    service: Service
    condition: Fact | None  # that told of it
    maintenance: Fact | None  # that announced it

    @property
    def told(self) -> tuple[Fact, ...]:
        """The facts about it that are true now."""
        return tuple(fact for fact in (self.condition, self.maintenance) if fact is not None)


_SELECT = "SELECT name, devices, isolated, service, condition, maintenance FROM nodes"


def _select(db: Db, where: str = "true", *values: object) -> list[Node]:
    rows = db.execute(f"{_SELECT} WHERE {where} ORDER BY position", values)
    facts = ("condition", "maintenance")
    return [Node(**{**row, **{key: books.fact_or_none(row[key]) for key in facts}}) for row in rows]


def set_up(db: Db, settings: LocalSettings) -> None:
    """The nodes that are wanted and not there yet. None is taken away: somebody may live on it."""
    for position in range(settings.nodes):
        add(db, f"n{position}", settings.devices)
    if settings.accelerator in hardware.KINDS:  # no simulation: there are as many as were found
        db.execute("UPDATE nodes SET devices = ?", (settings.devices,))


def add(db: Db, name: str, devices: int) -> None:
    db.execute(
        "INSERT INTO nodes (name, position, devices) SELECT ?, COUNT(*), ? FROM nodes WHERE true "
        "ON CONFLICT DO NOTHING",
        (name, devices),
    )


def isolate(db: Db, name: str, reason: str) -> None:
    """The first reason stays."""
    db.execute("UPDATE nodes SET isolated = COALESCE(isolated, ?) WHERE name = ?", (reason, name))


def release(db: Db, name: str) -> None:
    db.execute("UPDATE nodes SET isolated = NULL WHERE name = ?", (name,))


def named(db: Db, name: str) -> Node:
    """Raises a ValueError that names those there are."""
    found = _select(db, "name = ?", name)
    if not found:
        known = ", ".join(node.name for node in _select(db))
        raise ValueError(f"there is no node {name!r}; try one of {known}")
    return found[0]


def views(db: Db, settings: LocalSettings, now: float) -> tuple[NodeView, ...]:
    everybody = pods.everybody(db)
    return tuple(_view(db, node, everybody, settings, now) for node in _select(db))


def _view(
    db: Db, node: Node, everybody: Iterable[Pod], settings: LocalSettings, now: float
) -> NodeView:
    here = [pod for pod in everybody if pod.node == node.name]
    alive = [pod for pod in here if pod.dead_at is None]  # devices go with the processes
    holders = {index: pod.job for pod in alive for index in pod.devices}
    codes = codes_on(db, node.name)
    is_open = node.service == "ready" and node.maintenance is None
    without_devices = sum(not pod.devices for pod in alive)
    return NodeView(
        name=node.name,
        ready=node.service == "ready",
        isolated=node.isolated is not None,
        reason=node.isolated or next((fact.message for fact in node.told), ""),
        devices=tuple(
            DeviceView(
                index=index,
                health=_health(db, node, index, codes, now),
                codes=tuple(code for device, code in codes if device == index),
                job=holders.get(index),
            )
            for index in range(node.devices)
        ),
        jobs=tuple(sorted({pod.job for pod in here})),
        accelerator=settings.accelerator if node.devices else "none",
        slots_free=max(0, settings.slots - without_devices) if is_open else 0,
    )


def codes_on(db: Db, node: str) -> dict[tuple[int, str], Fact]:
    rows = db.execute("SELECT * FROM device_faults WHERE node = ?", (node,)).fetchall()
    return {(row["device"], row["code"]): books.from_text(row["fact"]) for row in rows}


def _health(
    db: Db, node: Node, index: int, codes: dict[tuple[int, str], Fact], now: float
) -> Literal["ok", "healing", "faulty", "isolated"]:
    heals = db.execute(
        "SELECT ends_at FROM heals WHERE node = ? AND device = ?", (node.name, index)
    ).fetchone()
    if heals is not None and now < heals["ends_at"]:
        return "healing"
    mine = [fact for (device, _), fact in codes.items() if device == index]
    if any(fact.details.get("severity") != "warning" for fact in mine):
        return "faulty"
    return "ok" if node.maintenance is None else "isolated"


# -- Who is told --------------------------------------------------------------------------------


def tell(db: Db, name: str, fact: Fact, *, device: int | None = None) -> None:
    """Every job that has a pod on this node is told; of a device, who holds it."""
    for pod in pods.on_node(db, name):
        if not pod.is_leaving and (device is None or device in pod.devices):
            books.tell(db, pod.job, replace(fact, slot=pod.slot))


def present(db: Db, job_id: str) -> tuple[Fact, ...]:
    """The faults that are there now under this job, as they were told or would be."""
    found: dict[str, Fact] = {}
    for pod in pods.of_job(db, job_id):
        held = [f for (index, _), f in codes_on(db, pod.node).items() if index in pod.devices]
        told = (*named(db, pod.node).told, *held)
        found |= {fact.id: replace(fact, slot=pod.slot) for fact in told}
    if (unwritable := books.job(db, job_id).unwritable) is not None:
        found[unwritable.id] = unwritable
    return tuple(sorted(found.values(), key=lambda fact: fact.at))
