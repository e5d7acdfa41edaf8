"""The checkpoints of a job, as one of its agents finds them on the storage that the ranks write to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from everstep.agent import wire
from everstep.agent_client import views
from everstep.agent_client.link import ASK_S, NoAnswer, Refused
from everstep.agent_client.watch import Agents
from everstep.core.errors import BackendUnavailable, NobodyToAsk
from everstep.core.world import Checkpoint


async def scan(
    agents: Agents, uids: Iterable[str], question: wire.CheckpointsQuestion
) -> tuple[Checkpoint, ...]:
    """What the first of these agents says that answers; the same storage is before all of them.

    Raises NobodyToAsk if none does, BackendUnavailable if that one cannot read the storage.
    """
    why = "its pods are not there yet, or not there any more"
    for uid in uids:
        try:
            return await _scan(agents, uid, question)
        except NoAnswer as silent:
            why = str(silent)
        except Refused as refused:
            raise BackendUnavailable(refused.why) from None
    raise NobodyToAsk(f"no agent says which checkpoints there are: {why}")


async def _scan(
    agents: Agents, uid: str, question: wire.CheckpointsQuestion
) -> tuple[Checkpoint, ...]:
    within_s = wire.LOOK_S + ASK_S
    asked = agents.ask(uid, "POST", wire.CHECKPOINTS, question, within_s=within_s)
    answer = asyncio.ensure_future(asked)
    try:
        # Slow storage is waited for, an agent that stopped meanwhile is not.
        while not (await asyncio.wait({answer}, timeout=ASK_S))[0]:
            known = agents.known.get(uid)
            if known is not None and (known.is_gone or known.silent_since is not None):
                raise NoAnswer(f"{uid} fell silent")
        said = answer.result()
    finally:
        answer.cancel()
    return tuple(views.checkpoint(saved) for saved in said["checkpoints"])
