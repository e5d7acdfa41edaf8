"""Have spare pods import ahead what ranks of the job have loaded, so that their first start is a fork too.

The agent of a pod whose helper is ready has the run command that it got, and the modules. The worker passes
both on to the agents of the spares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks
from everstep.core.world import JobRef
from everstep.protocol import wire


async def ensure_prewarmed(cluster: AgentCluster, job: JobRef, spares: Collection[int]) -> None:
    """Order the helpers that the spares lack. Nothing depends on their being there."""
    pods, standbys = await cluster.books.change(job.id, _read)
    agents = cluster.agents
    source = next((pod for pod in pods if _modules(agents, pod)), None)
    if source is None:
        return
    modules = _modules(agents, source)
    without = [p for p in standbys if p.slot in spares and _helper_modules(agents, p) != modules]
    if not without:
        return
    try:
        command = await agents.request(source.uid, "GET", wire.PREWARM)
    except (NoAnswer, Refused):
        return
    if command.get("prewarm"):
        await asyncio.gather(*(_order(agents, pod, command) for pod in without))


def _read(books: JobBooks) -> tuple[Sequence[Pod], Sequence[Pod]]:
    return [pod for pod in books.pods() if not pod.is_out], books.standbys()


def _helper_modules(agents: Agents, pod: Pod) -> Sequence[str]:
    """The modules of the pod's helper, ready or not."""
    agent = agents.by_uid.get(pod.uid)
    helper = None if agent is None or agent.state is None else agent.state["helper"]
    return () if helper is None else helper["modules"]


def _modules(agents: Agents, pod: Pod) -> Sequence[str]:
    """The modules of a helper that is ready."""
    agent = agents.by_uid.get(pod.uid)
    helper = None if agent is None or agent.state is None else agent.state["helper"]
    return helper["modules"] if helper is not None and helper["ready"] else ()


async def _order(agents: Agents, pod: Pod, command: dict[str, Any]) -> None:
    await agents.command(pod.uid, wire.PREWARM, command)
