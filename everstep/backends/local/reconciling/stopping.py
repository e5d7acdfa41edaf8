"""The end of processes whose pods stay: asked of their agents, seen where those are gone."""

from __future__ import annotations

import asyncio

from everstep.agent import wire
from everstep.backends.local.cluster import Cluster
from everstep.backends.local.database import books, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.local.reconciling.liveness import Life, sweep
from everstep.core.world import StopOrder, StopState


async def ensure(cluster: Cluster, order: StopOrder) -> StopState:
    """End what is older than the order, in all slots at once; how far it is."""

    def read(db: Db) -> dict[int, Pod]:
        books.owned(db, order.job, order.generation)
        return {pod.slot: pod for pod in pods.of_job(db, order.job.id)}

    own = await cluster.store.run(read)
    slots = sorted(own) if order.slots is None else sorted(order.slots)
    answers = await asyncio.gather(*(_stop(cluster, own.get(slot), order) for slot in slots))
    stopped = tuple(slot for slot, (done, _) in zip(slots, answers, strict=True) if done)
    kept = [evidence for _, evidence in answers if evidence]
    return StopState(
        stopped=stopped,
        pending=tuple(slot for slot in slots if slot not in stopped),
        evidence=kept[0] if kept and order.evidence else None,
    )


async def _stop(cluster: Cluster, pod: Pod | None, order: StopOrder) -> tuple[bool, str | None]:
    """Whether nothing older than the order runs in this pod any more, and what was kept of it."""
    if pod is None:
        return True, None
    folder = cluster.settings.folder(pod.uid)
    if pod.is_out:
        return sweep(folder.path) is Life.GONE, None
    body: wire.StopCommand = {
        "generation": order.generation,
        "grace_s": order.grace_s,
        "evidence": order.evidence,
        "keep": [],
    }
    state = await cluster.agents.command(pod.uid, wire.STOP, body)
    if state is None:
        began = pod.has_answered or pod.service != "ready"
        return not began and sweep(folder.path) is Life.GONE, None
    return state["stopped_below"] >= order.generation, state["evidence"]
