"""The end of processes whose pods stay: asked of their agents, seen where those are gone."""

from __future__ import annotations

import asyncio

from everstep.agent_client.stop import Stopped, stop
from everstep.backends.local.cluster import LocalCluster
from everstep.backends.local.database import books, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.local.reconciling.liveness import Life, sweep
from everstep.core.world import StopOrder, StopState


async def ensure(cluster: LocalCluster, order: StopOrder) -> StopState:
    """End what is older than the order, in all slots at once; how far it is."""

    def read(db: Db) -> dict[int, Pod]:
        books.owned(db, order.job, order.generation)
        return {pod.slot: pod for pod in pods.of_job(db, order.job.id)}

    own = await cluster.store.run(read)
    slots = sorted(own) if order.slots is None else sorted(order.slots)
    answers = await asyncio.gather(*(_stop(cluster, own.get(slot), order) for slot in slots))
    evidence = (answer.evidence for answer in answers if answer.evidence and order.evidence)
    return StopState(
        stopped=tuple(slot for slot, a in zip(slots, answers, strict=True) if a.is_done),
        pending=tuple(slot for slot, a in zip(slots, answers, strict=True) if not a.is_done),
        kept=tuple(sorted(rank for answer in answers for rank in answer.kept)),
        evidence=next(evidence, None),
    )


async def _stop(cluster: LocalCluster, pod: Pod | None, order: StopOrder) -> Stopped:
    if pod is None:
        return Stopped(is_done=True)
    folder = cluster.settings.folder(pod.uid)
    if pod.is_out:
        return Stopped(is_done=sweep(folder.path) is Life.GONE)
    stopped = await stop(
        cluster.agents,
        pod.uid,
        order.generation,
        keep=order.keep,
        grace_s=order.grace_s,
        evidence=order.evidence,
    )
    if stopped is None:
        began = pod.has_answered or pod.service != "ready"
        return Stopped(is_done=not began and sweep(folder.path) is Life.GONE)
    return stopped
