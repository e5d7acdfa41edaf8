"""Release the fences of an ended job through one of its agents, once nothing of the job runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

from everstep.backends.agents import dumping
from everstep.backends.agents.commands import ranks
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster
from everstep.core.errors import BackendUnavailable, NoAgentAvailable
from everstep.protocol import wire

LOG = logging.getLogger(__name__)

Ending = Literal["ended", "ending", "unknown"]


async def release(
    cluster: AgentCluster, pods: Sequence[Pod], command: wire.ReleaseCommand, *, grace_s: float
) -> bool | Pod:
    """Whether an agent released the folders; else the pod whose ranks are about to end, or are being saved.

    False: some pod gives no proof, or no agent answers. Then the pods have to go first.
    """
    above = command["generation"] + 1
    endings = await asyncio.gather(*(_end(cluster, pod, above, grace_s) for pod in pods))
    if "unknown" in endings:
        return False
    if "ending" in endings:
        return pods[endings.index("ending")]
    if grace_s > 0:
        saving = await dumping.before_the_end(cluster, pods, above, within_s=grace_s)
        if saving is not None:
            return saving
    uids = [pod.uid for pod in pods if not (pod.is_leaving or pod.is_out)]
    try:
        answer = await cluster.agents.request_any(
            uids, wire.RELEASE, command, within_s=wire.STORAGE_S
        )
    except (NoAgentAvailable, BackendUnavailable):
        return False
    for folder, why in answer["kept"].items():
        job = command["job"]
        LOG.warning("%s stays the folder of job %s: %s", folder, job, why, extra={"job": job})
    return True


async def _end(cluster: AgentCluster, pod: Pod, above: int, grace_s: float) -> Ending:
    """End what is older than `above` in this pod; how far that is."""
    if pod.dead_at is not None:
        return "ended"
    if pod.is_leaving or pod.is_out:
        return "ended" if await cluster.pods.have_ended(pod) else "unknown"
    stopped = await ranks.stop(cluster.agents, pod.uid, above, keep=(), grace_s=grace_s)
    if stopped is None:
        return "unknown"
    return "ended" if stopped.is_done else "ending"
