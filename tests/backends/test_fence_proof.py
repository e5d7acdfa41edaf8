"""The proof that a fence holds, by agents that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from everstep.backends.agents import fence_proof
from everstep.backends.agents.client.link import Link, NoAnswer
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.commands.ranks import RankSettings
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, AgentSettings
from everstep.core.world import FenceOrder, JobRef
from everstep.protocol import wire
from everstep.protocol.wire import RunOrder
from tests.support.patience import HUNG_S

PODS = 40
ORDER = FenceOrder(
    job=JobRef(id="demo", run="r"),
    generation=2,
    lowest_slot=0,
    run=RunOrder(model_dir="/out"),
)


class SilentLink(Link):
    """To an agent that does not answer: the request fails once every other agent has one."""

    def __init__(self, all_have_one: asyncio.Barrier) -> None:
        self._all_have_one = all_have_one

    async def request(
        self, _method: str, _path: str, _body: Any = None, *, within_s: float = 0.0
    ) -> dict[str, Any]:
        async with asyncio.timeout(HUNG_S):
            await self._all_have_one.wait()
        raise NoAnswer("it is stopped", waited_s=within_s)

    def close(self) -> None:
        """There is no connection."""


class OneJob:
    """The books of one job whose fence is written: each transaction reads the same."""

    record = JobRecord(id="demo", newest=2, newest_run="r", fenced=2, fenced_at=0.0)
    identity = "books"

    def refuse_others(self, _: JobRef) -> None:
        """The order is for these books."""

    def refuse_unknown(self, _: int) -> None:
        """They gave its generation."""

    def pods(self) -> list[Pod]:
        slots = range(PODS)
        return [
            Pod(uid=f"u{n}", job="demo", slot=n, node=f"n{n}", generation=1, has_answered=True)
            for n in slots
        ]

    def leaving(self) -> list[Pod]:
        return []

    async def change(self, _: str, work: Callable[[Any], Any]) -> Any:
        return work(self)


async def test_the_requests_to_silent_agents_are_sent_at_once() -> None:
    """One after the other they take longer than a worker waits for one call."""
    all_have_one = asyncio.Barrier(PODS)
    agents = Agents(
        link=lambda _: SilentLink(all_have_one),
        is_gone=lambda _: False,
        clock=lambda: 1.0,
        changed=lambda _: None,
        is_cut_off=lambda _: False,
    )
    ranks = RankSettings(cluster="books", fence_s=30.0, environ={}, pass_env=())
    books: Any = OneJob()
    pods: Any = None
    cluster = AgentCluster(
        books=books,
        pods=pods,
        agents=agents,
        settings=AgentSettings(ranks=ranks, fence_margin_s=5.0, thresholds=wire.THRESHOLDS),
        now=lambda: 1.0,
    )
    state, holds_at = await fence_proof.ensure_fenced(cluster, ORDER)
    assert state.waiting_for == "proof that u0 on n0 ended"
    assert holds_at == 35.0
