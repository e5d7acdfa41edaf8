"""Nodes and their devices as the books have them. Each function is part of a transaction."""

from __future__ import annotations

from dataclasses import replace

from pydantic import TypeAdapter

from everstep.agent.observing import hardware
from everstep.backends.local.database import books, pods
from everstep.backends.local.database.store import Db
from everstep.backends.local.settings import LocalSettings
from everstep.backends.rules import nodes
from everstep.backends.rules.nodes import Device, Node
from everstep.core.facts import Fact
from everstep.core.world import NodeView

NODES = TypeAdapter(Node)


def _to_text(node: Node) -> str:
    return NODES.dump_json(node, exclude_defaults=True).decode()


def every(db: Db) -> dict[str, Node]:
    rows = db.execute("SELECT name, body FROM nodes ORDER BY position")
    return {row["name"]: NODES.validate_json(row["body"]) for row in rows}


def keep(db: Db, node: Node) -> None:
    """Store the node as it is now."""
    db.execute("UPDATE nodes SET body = ? WHERE name = ?", (_to_text(node), node.name))


def set_up(db: Db, settings: LocalSettings) -> None:
    """Add the nodes of the settings that are missing. None is removed: it may have pods."""
    for position in range(settings.nodes):
        add(db, f"n{position}", settings.devices)
    if settings.accelerator in hardware.KINDS:  # no simulation: there are as many as were found
        for node in every(db).values():
            devices_before = {device.index: device for device in node.devices}
            node.devices = [devices_before.get(n, Device(index=n)) for n in range(settings.devices)]
            keep(db, node)


def add(db: Db, name: str, devices: int) -> None:
    new = Node(name=name, devices=[Device(index=index) for index in range(devices)])
    db.execute(
        "INSERT INTO nodes (name, position, body) SELECT ?, COUNT(*), ? FROM nodes WHERE true "
        "ON CONFLICT DO NOTHING",
        (name, _to_text(new)),
    )


def isolate(db: Db, name: str, reason: str) -> None:
    if nodes.device_of(name):
        db.execute("INSERT OR REPLACE INTO isolated_devices VALUES (?, ?)", (name, reason))
        return
    db.execute("UPDATE nodes SET isolated = ? WHERE name = ?", (reason, name))


def release(db: Db, name: str) -> None:
    db.execute("UPDATE nodes SET isolated = NULL WHERE name = ?", (name,))
    db.execute("DELETE FROM isolated_devices WHERE name = ?", (name,))


def isolated(db: Db) -> dict[str, str | None]:
    """Why each node is isolated; None of a node that is not."""
    rows = db.execute("SELECT name, isolated FROM nodes")
    return {row["name"]: row["isolated"] for row in rows}


def views(db: Db, settings: LocalSettings, now: float) -> tuple[NodeView, ...]:
    all_pods = pods.all_pods(db)
    reasons = isolated(db)
    devices = nodes.devices_by_node(dict(db.execute("SELECT name, reason FROM isolated_devices")))
    node_views = []
    for node in every(db).values():
        here = [pod for pod in all_pods if pod.node == node.name]
        alive = [pod for pod in here if pod.dead_at is None]  # devices go with the processes
        view = nodes.view(
            node,
            isolated=reasons[node.name],
            isolated_devices=devices.get(node.name, {}),
            holders={index: pod.job for pod in alive for index in pod.devices},
            jobs=(pod.job for pod in here),
            # Not slots of a job: places for pods without devices.
            slots_free=settings.slots - sum(not pod.devices for pod in alive),
            accelerator=settings.accelerator,
            now=now,
        )
        node_views.append(view)
    return tuple(node_views)


# -- Facts for jobs -----------------------------------------------------------------------------


def add_fact_to_jobs(db: Db, name: str, fact: Fact, *, device: int | None = None) -> None:
    """Add the fact to every job with a pod on this node; of a device, to the job that holds it."""
    for pod in pods.of_jobs_on(db, name):
        if not pod.is_leaving and (device is None or device in pod.devices):
            books.tell(db, pod.job, replace(fact, slot=pod.slot))


def present(db: Db, job_id: str) -> tuple[Fact, ...]:
    """The present faults of this job's nodes and devices, as the facts that report them."""
    facts_by_id: dict[str, Fact] = {}
    all_nodes = every(db)
    for pod in pods.of_job(db, job_id):
        node = all_nodes[pod.node]
        facts = (*node.facts, *nodes.faults_of(node, pod.devices))
        facts_by_id |= {fact.id: replace(fact, slot=pod.slot) for fact in facts}
    if (unwritable := books.job(db, job_id).unwritable) is not None:
        facts_by_id[unwritable.id] = unwritable
    return tuple(sorted(facts_by_id.values(), key=lambda fact: fact.at))
