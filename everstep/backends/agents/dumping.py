"""Have the snapshots of a job saved by the functions of their ranks, through its agents."""

from __future__ import annotations

import asyncio

from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record
from everstep.core.world import DumpOrder, DumpState
from everstep.protocol import wire


async def ensure_dumped(cluster: AgentCluster, order: DumpOrder) -> DumpState:
    """Send the order to every agent; return how far it is in all pods."""

    def read(books: JobBooks) -> list[Pod]:
        owned_record(books, order.job, order.generation)
        return [pod for pod in books.pods() if not pod.is_out]

    pods = await cluster.books.change(order.job.id, read)
    answers = await asyncio.gather(*(_dump(cluster, pod, order) for pod in pods))
    return DumpState(
        done=all(answer["done"] for answer in answers),
        saved=tuple(sorted(rank for answer in answers for rank in answer["saved"])),
        failed=tuple(why for answer in answers for why in answer["failed"]),
    )


async def _dump(cluster: AgentCluster, pod: Pod, order: DumpOrder) -> wire.DumpAnswer:
    """The agent's answer. A silent one gets the order again; one that refuses never saves."""
    command: wire.DumpCommand = {
        "generation": order.generation,
        "step": order.step,
        "within_s": order.within_s,
    }
    try:
        answer = await cluster.agents.request(pod.uid, "POST", wire.DUMP, command)
    except NoAnswer:
        return {"done": False, "saved": [], "failed": []}
    except Refused as refused:
        return {"done": True, "saved": [], "failed": [f"slot {pod.slot}: {refused.why}"]}
    return answer  # type: ignore[return-value]  # an agent answers with this
