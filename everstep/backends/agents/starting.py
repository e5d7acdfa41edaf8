"""Start the ranks of a generation in every slot. All of them get one place to meet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from everstep.backends.agents import job_record, neighbours
from everstep.backends.agents.client import agent_views
from everstep.backends.agents.commands import environment, ranks
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record
from everstep.core.world import StartOrder, StartState
from everstep.protocol import wire

BEFORE_RANKS_RUN = ("fence", "checkpoints", "start")
"""What agents do between the end of the older ranks and the start of the new ones."""


async def ensure_started(cluster: AgentCluster, order: StartOrder) -> StartState:
    """Start what does not run yet. The folders of the order are absolute."""
    pods, port = await cluster.books.change(
        order.job.id, lambda books: _record_start(cluster, books, order)
    )
    slots = sorted(order.slots, key=lambda slot: order.slots[slot].node_rank)
    hosts = tuple(cluster.pods.host(pods.get(slot)) for slot in slots)
    meeting = ranks.Meeting(hosts=hosts, port=port)
    slots.sort()
    answers = await asyncio.gather(*(_start(cluster, pods, slot, order, meeting) for slot in slots))
    state = ranks.state_of(dict(zip(slots, answers, strict=True)))
    works = agent_views.works(pods, cluster.agents.by_uid, order.generation, of=BEFORE_RANKS_RUN)
    return replace(state, works=works)


def _record_start(
    cluster: AgentCluster, books: JobBooks, order: StartOrder
) -> tuple[dict[int, Pod], int]:
    """Record the start, and let only spares go on standing by. Returns the pods by slot, and the port.

    The port of a generation is the same for every slot and every worker.
    """
    record = owned_record(books, order.job, order.generation)
    port = record.port if record.started == order.generation else cluster.pods.free_port()
    books.record = job_record.with_start(record, order, port=port)
    books.end_standbys(spares=order.spares)
    return {pod.slot: pod for pod in books.pods()}, port


async def _start(
    cluster: AgentCluster,
    pods: Mapping[int, Pod],
    slot: int,
    order: StartOrder,
    meeting: ranks.Meeting,
) -> wire.RunSeen | str | None:
    """The run of this generation, or why there can be none; None if no agent reports it yet."""
    pod = pods.get(slot)
    if pod is None or pod.is_lost or pod.service != "ready":
        return None
    settings = cluster.settings.ranks

    def command() -> wire.RunCommand | str:
        if why := environment.lacking(settings.environ, order.env_from):
            return why
        place = cluster.pods.place(pod, order.accelerator)
        peers = neighbours.memory_peers(order, slot, pods, address=cluster.pods.address)
        return ranks.run_command(
            order, slot, place, meeting=meeting, settings=settings, peers=peers
        )

    return await ranks.run_of(cluster.agents, pod.uid, order.generation, command)
