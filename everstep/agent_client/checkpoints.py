"""The checkpoints of a job, as one of its agents finds them on the storage that the ranks write to."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.agent import wire
from everstep.agent_client import views
from everstep.agent_client.watch import Agents
from everstep.core.world import Checkpoint, SetAside, SetAsideOrder


async def scan(
    agents: Agents, uids: Iterable[str], question: wire.CheckpointsQuestion
) -> tuple[Checkpoint, ...]:
    """Raises NobodyToAsk if no agent answers, BackendUnavailable if one cannot read the storage."""
    said = await agents.ask_any(uids, wire.CHECKPOINTS, question, within_s=wire.LOOK_S)
    return tuple(views.checkpoint(saved) for saved in said["checkpoints"])


async def set_aside(
    agents: Agents, uids: Iterable[str], folder: str, order: SetAsideOrder
) -> SetAside:
    """Raises as `scan` does."""
    command: wire.SetAsideCommand = {
        "generation": order.generation,
        "path": folder,
        "checkpoints": list(order.paths),
        "resume": order.resume,
    }
    said = await agents.ask_any(uids, wire.SET_ASIDE, command, within_s=wire.STORAGE_S)
    return SetAside(moved=tuple(said["moved"]), why=said["why"])
