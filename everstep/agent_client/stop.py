"""The end of what is older in one pod, as its agent is told and tells of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from everstep.agent import wire
from everstep.agent_client.watch import Agents


class Stopped(NamedTuple):
    """Whether nothing older runs in a pod any more; who goes on there, and what was kept of the others."""

    is_done: bool
    kept: Sequence[int] = ()
    evidence: str | None = None


async def stop(
    agents: Agents,
    uid: str,
    generation: int,
    *,
    keep: Collection[int],
    grace_s: float = 0.0,
    evidence: bool = False,
) -> Stopped | None:
    """How far it is; None if the agent does not answer.

    Of all ranks to keep it is told its own; one that was not heard yet, all of them.
    """
    known = agents.known.get(uid)
    run = known.state["run"] if known is not None and known.state is not None else None
    own = [rank["rank"] for rank in run["ranks"]] if run is not None else keep
    command: wire.StopCommand = {
        "generation": generation,
        "grace_s": grace_s,
        "evidence": evidence,
        "keep": [rank for rank in own if rank in keep],
    }
    state = await agents.command(uid, wire.STOP, command)
    if state is None:
        return None
    is_done = wire.is_stopped(state, command)
    return Stopped(is_done, kept=state["kept"] if is_done else (), evidence=state["evidence"])
