"""End what is older than a generation: through the agents, and by proof where an agent ended."""

from __future__ import annotations

import asyncio

from everstep.backends.agents.client import agent_views
from everstep.backends.agents.commands import ranks
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record
from everstep.core.world import StopOrder, StopState


async def ensure_stopped(cluster: AgentCluster, order: StopOrder) -> StopState:
    """End every older process in all slots of the order at once; return how far that is."""

    def read(books: JobBooks) -> dict[int, Pod]:
        owned_record(books, order.job, order.generation)
        return {pod.slot: pod for pod in books.pods()}

    pods = await cluster.books.change(order.job.id, read)
    slots = sorted(pods) if order.slots is None else sorted(order.slots)
    answers = await asyncio.gather(*(_stop(cluster, pods.get(slot), order) for slot in slots))
    evidence = (answer.evidence for answer in answers if answer.evidence and order.evidence)
    return StopState(
        stopped=tuple(slot for slot, a in zip(slots, answers, strict=True) if a.is_done),
        pending=tuple(slot for slot, a in zip(slots, answers, strict=True) if not a.is_done),
        kept_ranks=tuple(sorted(rank for answer in answers for rank in answer.kept_ranks)),
        positions=tuple(one for answer in answers for one in answer.positions),
        evidence=next(evidence, None),
        works=agent_views.works(pods, cluster.agents.by_uid, order.generation, of=("stop",)),
    )


async def _stop(cluster: AgentCluster, pod: Pod | None, order: StopOrder) -> ranks.Stopped:
    if pod is None:
        return ranks.Stopped(is_done=True)
    if pod.is_out:
        # Its agent can never answer: the pods port ends it, or proves that it ended.
        return ranks.Stopped(is_done=await cluster.pods.end(pod))
    stopped = await ranks.stop(
        cluster.agents,
        pod.uid,
        order.generation,
        keep=order.keep,
        hold_s=order.hold_s,
        grace_s=order.grace_s,
        evidence=order.evidence,
    )
    if stopped is None:
        # On a ready node an agent that never answered can be ended with its pod: it started no rank.
        may_have_begun = pod.has_answered or pod.service != "ready"
        return ranks.Stopped(is_done=not may_have_begun and await cluster.pods.end(pod))
    return stopped
