"""Places for pods: who waits for them, in which order, and who gets them. All of them, or none.

The queue is strict: re-issued jobs first, then priority, then the order of asking; nobody overtakes the
first. Who fits where is `everstep.core.placement`. Every function is part of a transaction.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from everstep.backends.local import books, nodes, pods
from everstep.backends.local.pods import Pod
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.store import Db
from everstep.core.errors import StaleGeneration
from everstep.core.placement import Need, broken_devices, choose, free_devices, room
from everstep.core.world import JobRef, NodeView, PlaceOrder, PlaceState, PodRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a transaction of ours needs beside the books."""

    db: Db
    settings: LocalSettings
    now: float

    def nodes(self) -> tuple[NodeView, ...]:
        return nodes.views(self.db, self.settings, self.now)


def to_text(order: PlaceOrder) -> str:
    return json.dumps(asdict(order))


def from_text(text: str) -> PlaceOrder:
    said = json.loads(text)
    tuples = ("slots", "recreate", "avoid")
    return PlaceOrder(
        **{
            **said,
            **{key: tuple(said[key]) for key in tuples},
            "job": JobRef(**said["job"]),
            "avoid_devices": tuple((node, index) for node, index in said["avoid_devices"]),
        }
    )


def ask(moment: Moment, order: PlaceOrder) -> PlaceState:
    """Join the queue, or ask again from the same place in it; how far the order is.

    Placed means that the pods are decided upon; whether they are ready is for who sees their agents.
    """
    job = books.owned(moment.db, order.job, order.generation)
    if order.generation <= job.closed:
        # It arrives after `ensure_gone`: what it would create, nobody would remove.
        raise StaleGeneration(order.job.id, given=order.generation, current=job.closed + 1)
    if job.placed != order.generation:
        _clear_away(moment.db, order)
        _join(moment.db, order)
        serve_queue(moment)
    return _answer(moment, order)


def _clear_away(db: Db, order: PlaceOrder) -> None:
    """Tell the old pods to go. Those made for this generation are not old."""
    for pod in pods.of_job(db, order.job.id):
        is_old = pod.generation < order.generation
        if pod.slot not in order.slots or (pod.slot in order.recreate and is_old):
            pods.let_go(db, pod.uid)


def _join(db: Db, order: PlaceOrder) -> None:
    db.execute(
        "INSERT INTO queue (job, reissued, priority, placing) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (job) DO UPDATE SET placing = excluded.placing",
        (order.job.id, order.reissued, order.priority, to_text(order)),
    )


def serve_queue(moment: Moment) -> None:
    """Give places to the jobs that wait, until there is none for the first of them."""
    for row in _queue(moment.db):
        if not _grant(moment, from_text(row["placing"])):
            break


def _queue(db: Db) -> list[Any]:
    return db.execute(
        "SELECT * FROM queue ORDER BY reissued DESC, priority DESC, number"
    ).fetchall()


def _grant(moment: Moment, order: PlaceOrder) -> bool:
    missing, chosen = _choose(moment, order)
    if _going(moment, order) or len(chosen) < len(missing):
        return False
    seen = {view.name: view for view in moment.nodes()}
    cluster = books.cluster(moment.db)
    for slot, name in chosen.items():
        pods.enter(
            moment.db,
            f"{pod_name(order.job.id, slot, order.generation)}-{cluster}",
            job=order.job.id,
            slot=slot,
            node=name,
            generation=order.generation,
            devices=_devices(seen[name], order),
        )
    moment.db.execute("UPDATE jobs SET placed = ? WHERE id = ?", (order.generation, order.job.id))
    moment.db.execute("DELETE FROM queue WHERE job = ?", (order.job.id,))
    return True


def pod_name(job_id: str, slot: int, generation: int) -> str:
    """A name that can also be a folder's; of an ID that cannot be one a part and its hash."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", job_id)[:40]
    if safe != job_id:
        safe = f"{safe}-{hashlib.sha256(job_id.encode()).hexdigest()[:8]}"
    return f"{safe}-{slot}-g{generation}"


def _choose(moment: Moment, order: PlaceOrder) -> tuple[tuple[int, ...], dict[int, str]]:
    """The slots that have no pod, and where as many of them as possible could live."""
    own = pods.of_job(moment.db, order.job.id)
    missing = tuple(s for s in sorted(order.slots) if s not in {pod.slot for pod in own})
    # At most one pod of a job on a node: losing the node shall cost one slot.
    leaving = [pod for pod in _leaving(moment, order) if _is_in_the_way(moment, pod, order)]
    taken = {pod.node for pod in (*own, *leaving)}
    return missing, choose(missing, moment.nodes(), _need(order), taken=taken)


def _need(order: PlaceOrder) -> Need:
    return Need(
        accelerators=order.accelerators_per_node,
        avoid=frozenset(order.avoid),
        avoid_devices=frozenset(order.avoid_devices),
    )


def _devices(node: NodeView, order: PlaceOrder) -> tuple[int, ...]:
    free, wanted = free_devices(node, _need(order)), order.accelerators_per_node
    return free if wanted == "all" else free[:wanted]


def _leaving(moment: Moment, order: PlaceOrder) -> list[Pod]:
    return pods.leaving(moment.db, order.job.id)


def _in_the_way_until(pod: Pod, order: PlaceOrder) -> float | None:
    """When a new pod may be made though this old one is not cleared yet; None: nobody knows."""
    if order.clearing_s is None or pod.dead_at is None:
        return None
    return pod.dead_at + order.clearing_s


def _is_in_the_way(moment: Moment, pod: Pod, order: PlaceOrder) -> bool:
    until = _in_the_way_until(pod, order)
    return until is None or moment.now < until


def _going(moment: Moment, order: PlaceOrder) -> tuple[str, ...]:
    """Old pods of the job that have to go first, and will. Those cut off from us may never."""
    return tuple(
        str(pod)
        for pod in _leaving(moment, order)
        if pod.service != "cut_off" and _is_in_the_way(moment, pod, order)
    )


def opens_at(moment: Moment, order: PlaceOrder) -> float | None:
    """When the next old pod is no hindrance any more, though it is not cleared yet."""
    ends = [_in_the_way_until(pod, order) for pod in _leaving(moment, order)]
    return min((at for at in ends if at is not None and at > moment.now), default=None)


# -- Answering ----------------------------------------------------------------------------------


def _answer(moment: Moment, order: PlaceOrder) -> PlaceState:
    db = moment.db
    if books.job(db, order.job.id).placed == order.generation:
        own = (pod for pod in pods.of_job(db, order.job.id) if pod.slot in order.slots)
        refs = {pod.slot: PodRef(node=pod.node, uid=pod.uid) for pod in own}
        return PlaceState(placed=True, pods=refs, places=len(refs))
    missing, chosen = _choose(moment, order)
    kept = len(order.slots) - len(missing)
    first = _queue(db)[0]["job"]
    if first != order.job.id:
        return PlaceState(placed=False, places=kept, waiting_for=f"its turn behind {first}")
    wait = _wanting(moment, order, len(missing) - len(chosen))
    return PlaceState(placed=False, places=kept + len(chosen), waiting_for=wait)


def _wanting(moment: Moment, order: PlaceOrder, missing: int) -> str:
    """What would have to happen, the nearest first."""
    if going := _going(moment, order):
        return f"{going[0]} to go"
    views, need = moment.nodes(), _need(order)
    if broken := broken_devices(views, need):
        return f"device {broken[0]}"
    return room(missing, wanted=len(order.slots), nodes=views, need=need)
