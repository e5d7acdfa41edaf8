"""The first agent that answers names the checkpoints that exist."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everstep.backends.agents.client.link import Link, NoAnswer, Refused
from everstep.backends.agents.client.watch import STATE_NOW, Agents, WatchedAgent
from everstep.backends.agents.commands import storage
from everstep.core.errors import BackendUnavailable, NoAgentAvailable
from everstep.protocol import wire
from tests.support.patience import HUNG_S

QUESTION: wire.CheckpointsQuestion = {
    "path": "/saved",
    "format": "auto",
    "pattern": None,
    "phase": None,
    "ended_between": [(7.0, 7.0)],
    "is_over": False,
}


def saved(step: int) -> wire.SavedState:
    return {
        "step": step,
        "number": step,
        "path": f"/saved/{step}",
        "bytes": 1,
        "at": 1.0,
        "good": True,
        "is_sure": True,
        "doubt": "",
    }


class One(Link):
    """Answers with this, or never; `together`: not before so many requests came."""

    def __init__(
        self,
        answer: wire.SavedState | Exception | None,
        together: asyncio.Barrier | None = None,
    ) -> None:
        self.answer = answer
        self.together = together
        self.requests: list[Any] = []

    async def request(self, method: str, path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        self.requests.append((method, path, body))
        if self.answer is None:
            await asyncio.Event().wait()
        if self.together is not None:
            await self.together.wait()
        if path == STATE_NOW and not isinstance(self.answer, Exception):
            return {}
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"checkpoints": [self.answer]}

    def close(self) -> None:
        """There is no connection."""


def watching(**links: One) -> Agents:
    return Agents(
        link=lambda uid: links[uid],
        is_gone=lambda _: False,
        clock=lambda: 1_000.0,
        changed=lambda _: None,
        is_cut_off=lambda _: False,
        by_uid={uid: WatchedAgent(link=link) for uid, link in links.items()},
    )


async def steps(agents: Agents) -> list[int | None]:
    scanned = storage.checkpoints(agents, agents.by_uid, QUESTION)
    return [one.step for one in await asyncio.wait_for(scanned, HUNG_S)]


async def test_the_first_is_asked_and_no_other() -> None:
    first, second = One(saved(10)), One(saved(20))
    assert await steps(watching(first=first, second=second)) == [10]
    assert first.requests == [("POST", wire.CHECKPOINTS, QUESTION)]
    assert second.requests == []


async def test_where_one_does_not_answer_the_next_one_does() -> None:
    assert await steps(watching(a=One(NoAnswer("stopped")), b=One(saved(20)))) == [20]


async def test_however_many_are_stopped_that_is_found_out_of_all_at_once() -> None:
    together = asyncio.Barrier(4)
    silent = NoAnswer("it is stopped")
    stopped = {f"stopped-{n}": One(silent, together) for n in range(4)}
    first, last = One(silent), One(saved(20))
    assert await steps(watching(first=first, **stopped, last=last)) == [20]
    assert [path for _, path, _ in last.requests] == [STATE_NOW, wire.CHECKPOINTS]


async def test_one_that_falls_silent_meanwhile_is_not_waited_for() -> None:
    """Slow storage is given a minute; an agent without any answer is not."""
    agents = watching(a=One(None), b=One(saved(20)))
    agents.by_uid["a"].silent_since = 1_000.0
    assert await steps(agents) == [20]


async def test_where_nobody_answers_nothing_is_concluded() -> None:
    with pytest.raises(NoAgentAvailable, match="stopped"):
        await steps(watching(a=One(NoAnswer("it is stopped"))))
    with pytest.raises(NoAgentAvailable, match="not there"):
        await steps(watching())


async def test_storage_that_one_cannot_read_no_other_is_asked_for() -> None:
    second = One(saved(20))
    agents = watching(a=One(Refused(wire.NO_STORAGE, "the storage does not answer")), b=second)
    with pytest.raises(BackendUnavailable, match="storage does not answer") as unknown:
        await steps(agents)
    assert not isinstance(unknown.value, NoAgentAvailable)
    assert second.requests == []
