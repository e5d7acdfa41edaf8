"""The link to a pod is made at its first request, however many come at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from everstep.agent_client.link import ASK_S, Link
from everstep.backends.kubernetes.pods import PodLink


@dataclass
class StubLink(Link):
    """Answers with its number."""

    number: int
    is_closed: bool = False

    async def ask(
        self, method: str, path: str, body: Any = None, *, within_s: float = ASK_S
    ) -> dict[str, Any]:
        del method, path, body, within_s
        return {"link": self.number}

    def close(self) -> None:
        self.is_closed = True


class Maker:
    """Makes links, as late as a test wants."""

    def __init__(self) -> None:
        self.made: list[StubLink] = []
        self.may_make = asyncio.Event()

    async def __call__(self) -> StubLink:
        await self.may_make.wait()
        self.made.append(StubLink(len(self.made)))
        return self.made[-1]


async def test_requests_at_once_use_one_link() -> None:
    """A second one would keep a connection that nothing closes."""
    make = Maker()
    link = PodLink(make)
    requests = [asyncio.ensure_future(link.ask("GET", "/")) for _ in range(2)]
    await asyncio.sleep(0)
    make.may_make.set()
    assert await asyncio.gather(*requests) == [{"link": 0}, {"link": 0}]


async def test_a_link_that_is_closed_before_it_is_made_keeps_nothing() -> None:
    make = Maker()
    link = PodLink(make)
    ask = asyncio.ensure_future(link.ask("GET", "/"))
    await asyncio.sleep(0)
    link.close()
    make.may_make.set()
    await ask
    assert make.made[0].is_closed
