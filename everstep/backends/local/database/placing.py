"""Orders to place, in the books: they wait there and get pods, by `everstep.backends.rules.placing`.

Every function is part of a transaction.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import TypeAdapter

from everstep.backends.local.database import books, identity, nodes, pods
from everstep.backends.local.database.job_books import owned
from everstep.backends.local.database.pods import LocalPod
from everstep.backends.local.database.store import Db
from everstep.backends.local.settings import LocalSettings
from everstep.backends.rules import ownership, placing
from everstep.core.world import NodeView, PlaceOrder, PlaceState, PodRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction on the books, with the settings and the time."""

    db: Db
    settings: LocalSettings
    now: float

    def nodes(self) -> tuple[NodeView, ...]:
        return nodes.views(self.db, self.settings, self.now)


ORDERS = TypeAdapter(PlaceOrder)


def to_text(order: PlaceOrder) -> str:
    return ORDERS.dump_json(order).decode()


def from_text(text: str) -> PlaceOrder:
    return ORDERS.validate_json(text)


def take_order(
    transaction: Transaction, order: PlaceOrder, *, lost: Collection[str] = ()
) -> PlaceState:
    """Put the order into the queue, where a repeated one keeps its place; return its progress.

    `lost`: pods whose agent ended, none of which is taken.

    Placed means that the pods are decided upon. Whether they are ready is known once their agents answer.
    """
    db = transaction.db
    job = owned(db, order.job, order.generation)
    ownership.refuse_ended(job, order.generation)
    if job.placed != order.generation:
        job_pods = {pod.slot: pod for pod in pods.of_job(db, job.id)}
        made_in = {slot: pod.generation for slot, pod in job_pods.items()}
        for slot in placing.slots_to_remove(order, made_in):
            pods.let_go(db, job_pods[slot].uid)
        _take_standbys(transaction, order, lost)
        _join(db, order)
        serve_queue(transaction)
        _end_spares_for(transaction, order)
    return _answer(transaction, order)


def _take_standbys(transaction: Transaction, order: PlaceOrder, lost: Collection[str]) -> None:
    """Give slots without a pod one that stands by. Of the others, the order's spares go on standing by."""
    db = transaction.db
    usable = _usable_standbys(transaction, order, lost)
    without_pod = {*order.slots} - {pod.slot for pod in pods.of_job(db, order.job.id)}
    for slot, number in placing.takers(without_pod, usable, spares=order.spares).items():
        pods.take(db, usable[number].uid, slot, order.generation)
    _end_standbys(db, order, usable, to_keep=order.spares)


def ensure_standbys(
    transaction: Transaction, order: PlaceOrder, *, lost: Collection[str]
) -> list[LocalPod]:
    """The pods that stand by for the slots to recreate; `lost` are pods whose agent ended."""
    db = transaction.db
    job = owned(db, order.job, order.generation)
    ownership.refuse_ended(job, order.generation)
    usable = _usable_standbys(transaction, order, lost)
    _end_standbys(db, order, usable, to_keep={*order.recreate, *order.spares})
    for slot, number in placing.takers(order.recreate, usable, spares=order.spares).items():
        pods.stand_by_for(db, usable[number].uid, slot)
    _add_standbys(transaction, order)
    return [pod for pod in pods.standing_by(db, job.id) if pod.slot in order.recreate]


def _end_spares_for(transaction: Transaction, order: PlaceOrder) -> None:
    """Let spares of other jobs give way to a restarted job that still waits."""
    db = transaction.db
    if not order.reissued or books.job(db, order.job.id).placed == order.generation:
        return
    spare_pods = pods.spares_of_others(db, order.job.id)
    spares = [
        placing.Spare(uid=pod.uid, place=placing.Place(node=pod.node, devices=pod.devices))
        for pod in spare_pods
        if not pod.is_leaving
    ]
    request = _request(transaction, order, transaction.nodes())
    ending = len(spare_pods) - len(spares)
    for spare in placing.spares_to_end(request, spares, ending=ending):
        pods.let_go(db, spare.uid)


def _usable_standbys(
    transaction: Transaction, order: PlaceOrder, lost: Collection[str]
) -> dict[int, LocalPod]:
    """The pods that stand by and can become the order's, by their numbers."""
    views = transaction.nodes()
    return {
        pod.slot: pod
        for pod in pods.standing_by(transaction.db, order.job.id)
        if pod.uid not in lost and _is_usable(pod, order, views)
    }


def _end_standbys(
    db: Db, order: PlaceOrder, usable: Mapping[int, LocalPod], *, to_keep: Collection[int]
) -> None:
    """End the pods that stand by and are not among the kept ones, or of no use."""
    for pod in pods.standing_by(db, order.job.id):
        if pod.slot not in to_keep or pod.slot not in usable:
            pods.let_go(db, pod.uid)


def _add_standbys(transaction: Transaction, order: PlaceOrder) -> None:
    """Enter a pod for each slot to recreate for which none stands by, as far as there is room."""
    db, job_id = transaction.db, order.job.id
    standbys = pods.standing_by(db, job_id)
    missing = sorted({*order.recreate} - {pod.slot for pod in standbys})
    views = transaction.nodes() if missing else ()
    # A job that waits comes before a pod that only stands by.
    if not missing or any(_request(transaction, other, views).claims_nodes for other in queue(db)):
        return
    all_pods = (*pods.of_job(db, job_id), *standbys, *pods.leaving(db, job_id))
    in_use = {pod.node for pod in all_pods}
    places = placing.standby_places(order, missing, in_use=in_use, nodes=views)
    for slot, place in places.items():
        uid = _standby_uid(transaction, job_id, slot, order.generation)
        pods.enter(
            db,
            uid,
            job=job_id,
            slot=slot,
            node=place.node,
            generation=order.generation,
            devices=place.devices,
        )
        if slot in order.slots:
            pods.stand_by(db, uid)
        else:
            pods.stand_by_as_spare(db, uid, transaction.now)


def _standby_uid(transaction: Transaction, job_id: str, slot: int, generation: int) -> str:
    """A uid whose folder no earlier pod had."""
    name, cluster = pod_name(job_id, slot, generation), identity.identity(transaction.db)
    uids = (f"{name}s{n}-{cluster}" for n in itertools.count(1))
    return next(uid for uid in uids if not transaction.settings.folder(uid).path.exists())


def _is_usable(pod: LocalPod, order: PlaceOrder, views: tuple[NodeView, ...]) -> bool:
    place = placing.Place(node=pod.node, devices=pod.devices)
    return not pod.is_lost and placing.still_fits(place, order, views)


def _join(db: Db, order: PlaceOrder) -> None:
    db.execute(
        "INSERT INTO queue (job, placing) VALUES (?, ?) "
        "ON CONFLICT (job) DO UPDATE SET placing = excluded.placing",
        (order.job.id, to_text(order)),
    )


def serve_queue(transaction: Transaction) -> None:
    """Give places to the jobs that wait."""
    placing.serve(
        queue(transaction.db),
        nodes=transaction.nodes,
        request_of=partial(_request, transaction),
        grant=partial(_grant, transaction),
    )


def queue(db: Db) -> list[PlaceOrder]:
    """The waiting jobs in the order of their turns."""
    rows = db.execute("SELECT number, placing FROM queue").fetchall()
    waiting = [(from_text(row["placing"]), row["number"]) for row in rows]
    return [order for order, _ in sorted(waiting, key=lambda one: placing.queue_key(*one))]


def _grant(
    transaction: Transaction, order: PlaceOrder, places: Mapping[int, placing.Place]
) -> None:
    db, job_id = transaction.db, order.job.id
    cluster = identity.identity(db)
    for slot, place in places.items():
        pods.enter(
            db,
            f"{pod_name(job_id, slot, order.generation)}-{cluster}",
            job=job_id,
            slot=slot,
            node=place.node,
            generation=order.generation,
            devices=place.devices,
        )
    books.store(db, replace(books.job(db, job_id), placed=order.generation))
    db.execute("DELETE FROM queue WHERE job = ?", (job_id,))


def pod_name(job_id: str, slot: int, generation: int) -> str:
    """A name that can also be a folder's; of an ID that cannot be one a part and its hash."""
    return f"{_folder_name(job_id)}-{slot}-g{generation}"


def is_pod_of(uid: str, job_id: str, cluster: str) -> bool:
    """Whether the books with this identity gave the pod to this job."""
    name = rf"{re.escape(_folder_name(job_id))}-[0-9]+-g[0-9]+(s[0-9]+)?-{re.escape(cluster)}"
    return re.fullmatch(name, uid) is not None


def _folder_name(job_id: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", job_id)[:40]
    return safe if safe == job_id else f"{safe}-{hashlib.sha256(job_id.encode()).hexdigest()[:8]}"


def _request(
    transaction: Transaction, order: PlaceOrder, views: Sequence[NodeView]
) -> placing.PlaceRequest:
    return placing.PlaceRequest(
        order=order,
        job_nodes={pod.slot: pod.node for pod in pods.of_job(transaction.db, order.job.id)},
        leaving=_leaving(transaction.db, order),
        nodes=views,
        now=transaction.now,
    )


def _leaving(db: Db, order: PlaceOrder) -> list[placing.OldPod]:
    return [
        placing.OldPod(
            name=pod.uid, node=pod.node, is_reachable=pod.service != "cut_off", dead_at=pod.dead_at
        )
        for pod in pods.leaving(db, order.job.id)
    ]


def opens_at(transaction: Transaction, order: PlaceOrder) -> float | None:
    """The next time at which one of the job's old pods stops being in the way."""
    return placing.opens_at(order, _leaving(transaction.db, order), now=transaction.now)


def _answer(transaction: Transaction, order: PlaceOrder) -> PlaceState:
    db = transaction.db
    if books.job(db, order.job.id).placed != order.generation:
        views = transaction.nodes()
        waiting = (_request(transaction, other, views) for other in queue(db))
        claims = placing.claims_before(order.job.id, waiting)
        return replace(_request(transaction, order, views), claims=claims).waiting_state()
    job_pods = pods.of_job(db, order.job.id)  # those that the order does not name were let go
    refs = {pod.slot: PodRef(node=pod.node, uid=pod.uid) for pod in job_pods}
    new = (pod for pod in job_pods if pod.generation == order.generation)
    stood_up_s = {pod.slot: s for pod in new if (s := pods.stood_up_s(db, pod.uid)) is not None}
    return PlaceState(placed=True, pods=refs, places=len(refs), stood_up_s=stood_up_s)
