"""Have the snapshots of a job saved by the functions of their ranks, through its agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from everstep.backends.agents.client import agent_views
from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record
from everstep.core.world import DumpOrder, DumpState, newest_whole_step
from everstep.protocol import wire

LOG = logging.getLogger(__name__)


async def ensure_dumped(cluster: AgentCluster, order: DumpOrder) -> DumpState:
    """Send the order to every agent; return how far it is in all pods."""

    def read(books: JobBooks) -> list[Pod]:
        owned_record(books, order.job, order.generation)
        return [pod for pod in books.pods() if not pod.is_out]

    pods = await cluster.books.change(order.job.id, read)
    command: wire.DumpCommand = {
        "generation": order.generation,
        "step": order.step,
        "within_s": order.within_s,
    }
    answers = await _answers(cluster, pods, command)
    return DumpState(
        done=all(answer["done"] for answer in answers),
        saved=tuple(sorted(rank for answer in answers for rank in answer["saved"])),
        failed=tuple(why for answer in answers for why in answer["failed"]),
    )


async def before_the_end(
    cluster: AgentCluster, pods: Sequence[Pod], generation: int, *, within_s: float
) -> Pod | None:
    """Save the newest snapshots of a job that is stopped, if no checkpoint is as new.

    Returns a pod that has not done its part yet. Every rank has ended.
    """
    agents = cluster.agents.by_uid
    pod_views = [agent_views.pod_view(pod, agents.get(pod.uid)) for pod in pods if not pod.is_out]
    step = newest_whole_step(pod_views)
    checkpoint = agent_views.newest_checkpoint(agents[pod.uid] for pod in pods if pod.uid in agents)
    is_saved = checkpoint is not None and step is not None and (checkpoint.step or 0) >= step
    if step is None or is_saved or not any(one.saves for pod in pod_views for one in pod.snapshots):
        return None
    living = [pod for pod in pods if not (pod.is_leaving or pod.is_out)]
    command: wire.DumpCommand = {"generation": generation, "step": step, "within_s": within_s}
    answers = await _answers(cluster, living, command)
    for why in (why for answer in answers for why in answer["failed"]):
        LOG.warning("step %d is not saved from memory: %s", step, why, extra={"job": pods[0].job})
    pending = (pod for pod, answer in zip(living, answers, strict=True) if not answer["done"])
    return next(pending, None)


async def _answers(
    cluster: AgentCluster, pods: Sequence[Pod], command: wire.DumpCommand
) -> list[wire.DumpAnswer]:
    return await asyncio.gather(*(_dump(cluster, pod, command) for pod in pods))


async def _dump(cluster: AgentCluster, pod: Pod, command: wire.DumpCommand) -> wire.DumpAnswer:
    """The agent's answer. A silent one gets the order again; one that refuses never saves."""
    try:
        answer = await cluster.agents.request(pod.uid, "POST", wire.DUMP, command)
    except NoAnswer:
        return {"done": False, "saved": [], "failed": []}
    except Refused as refused:
        return {"done": True, "saved": [], "failed": [f"slot {pod.slot}: {refused.why}"]}
    return answer  # type: ignore[return-value]  # an agent answers with this
