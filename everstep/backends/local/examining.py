"""A look at what the local cluster has in a state directory, for commands. Changes nothing."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.pod import Pod
from everstep.backends.local.database import inspection, pods
from everstep.backends.local.database.store import Store
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.backends.local.reconciling.liveness import Life, agent_of
from everstep.backends.local.settings import LocalSettings
from everstep.backends.tools import Examined, SilentAgent

ANSWER_S = 3.0
"""An agent that lives answers in milliseconds; on a machine that is very busy, in seconds."""


async def silent(home: Path) -> tuple[SilentAgent, ...]:
    """Agents of pods that live and do not answer one request."""
    settings = LocalSettings(home=home)
    if not settings.database.exists():
        return ()
    with closing(Store(settings.database)) as store:
        all_pods = await store.run(pods.all_pods)
    to_poll = [p for p in all_pods if p.has_answered and not p.is_lost and p.dead_at is None]
    agents = await asyncio.gather(*(_silent(settings.folder(pod.uid), pod) for pod in to_poll))
    return tuple(agent for agent in agents if agent is not None)


async def _silent(folder: AgentFolder, pod: Pod) -> SilentAgent | None:
    try:
        await folder.request("GET", "/v1/state?since=0&wait_s=0", within_s=ANSWER_S)
    except Refused:
        return None
    except NoAnswer:
        if folder.life() is Life.GONE:
            return None  # which the cluster sees for itself
        process = agent_of(folder.path)
        pid, is_stopped = (None, False) if process is None else (process.pid, process.is_stopped)
        return SilentAgent(
            job=pod.job, slot=pod.slot, node=pod.node, pid=pid, is_stopped=is_stopped
        )
    return None


def examine(home: Path) -> Examined:
    settings = LocalSettings(home=home)
    living = tuple(sorted(settings.living()))
    books = settings.database
    if not books.exists():
        return Examined(books=str(books), is_there=False, strays=living)
    problem, uids = inspection.inspect(books)
    if problem:  # whose the agents are cannot be told
        return Examined(books=str(books), is_there=True, problem=problem)
    return Examined(
        books=str(books),
        is_there=True,
        agents=tuple(uid for uid in living if uid in uids),
        strays=tuple(uid for uid in living if uid not in uids),
    )
