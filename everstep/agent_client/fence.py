"""The fence of a job, as one of its agents finds and writes it on the storage that the ranks write to."""

from __future__ import annotations

from collections.abc import Collection

from everstep.agent import wire
from everstep.agent_client.link import ASK_S
from everstep.agent_client.watch import Agents
from everstep.core.errors import FolderTaken
from everstep.core.world import FenceOrder


def folders(order: FenceOrder) -> dict[str, str]:
    """Those of the order, each with the field of the document that names it."""
    named = ((order.model_dir, "model_dir"), (order.checkpoints_path, "checkpoints.path"))
    return {folder: field for folder, field in named if folder is not None}


async def write(
    agents: Agents, uid: str, order: FenceOrder, *, cluster: str, left: Collection[str]
) -> wire.FenceAnswer:
    """What the agent says of it. `left`: where earlier generations may still write; it is outdated there.

    Raises NoAnswer or Refused, and FolderTaken if a folder is that of another job which has not ended.
    """
    named = folders(order)
    body: wire.FenceCommand = {
        "generation": order.generation,
        "run": order.job.run,
        "cluster": cluster,
        "folders": list(named),
        "left": [folder for folder in left if folder not in named],
    }
    said = await agents.ask(uid, "POST", wire.FENCE, body, within_s=wire.STORAGE_S + ASK_S)
    answer: wire.FenceAnswer = said  # type: ignore[assignment]  # what an agent says is this
    if taken := answer["taken"]:
        is_ours = taken["cluster"] == cluster
        where = "" if is_ours else " of another cluster (its EVERSTEP_HOME is not ours)"
        folder, owner = taken["folder"], f"{taken['job']}{where}"
        raise FolderTaken(named[folder], folder, owner, is_ours=is_ours)
    return answer
