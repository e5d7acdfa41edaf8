"""Have the ranks of a job save now, through its agents."""

from __future__ import annotations

import asyncio

from everstep.backends.agents.client import agent_views
from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record
from everstep.core.world import SaveOrder, SaveState
from everstep.protocol import wire


async def ensure_save_requested(cluster: AgentCluster, order: SaveOrder) -> SaveState:
    """Send the request to every agent; return what is saved since."""

    def read(books: JobBooks) -> list[Pod]:
        owned_record(books, order.job, order.generation)
        return [pod for pod in books.pods() if not pod.is_out]

    pods = await cluster.books.change(order.job.id, read)
    by_pod = await asyncio.gather(*(_request(cluster, pod, order) for pod in pods))
    answers = [answer for answer in by_pod if answer is not None]
    saved = [agent_views.checkpoint(one["saved"]) for one in answers if one["saved"] is not None]
    good = [checkpoint for checkpoint in saved if checkpoint.good]
    return SaveState(
        signalled=tuple(sorted(rank for answer in answers for rank in answer["signalled"])),
        deaf=tuple(sorted(rank for answer in answers for rank in answer["deaf"])),
        silent=tuple(pod.slot for pod, one in zip(pods, by_pod, strict=True) if one is None),
        saved=max(good, key=agent_views.newness, default=None),
    )


async def _request(cluster: AgentCluster, pod: Pod, order: SaveOrder) -> wire.SaveAnswer | None:
    """The agent's answer; None if there is none, or if its ranks of this generation do not run."""
    command: wire.SaveCommand = {
        "generation": order.generation,
        "request": order.request,
        "signal": order.signal,
    }
    try:
        answer = await cluster.agents.request(pod.uid, "POST", wire.SAVE, command)
    except (NoAnswer, Refused):
        return None
    return answer  # type: ignore[return-value]  # an agent answers with this
