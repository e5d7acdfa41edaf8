"""One connection to an agent is kept and used again, unless it may not or can not be."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.backends.agents.client.link import HttpLink, NoAnswer, Refused, unix_link
from everstep.protocol import wire
from tests.support.patience import HUNG_S

WITHIN_S = 0.4


class Agent:
    """Answers with the number of the connection and of the request on it, unless a test overrides that."""

    def __init__(self) -> None:
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.heads: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.left = asyncio.Event()  # the client of some connection
        self.sends_close = False
        self.status = "200 OK"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        here, requests = self.connections, 0
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                requests += 1
                body = json.dumps({"connection": here, "request": requests}).encode()
                await self.may_answer.wait()
                close = "Connection: close\r\n" if self.sends_close else ""
                head = f"HTTP/1.1 {self.status}\r\n{close}Content-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            self.left.set()
            writer.close()

    async def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
            with suppress(OSError):  # whoever asked has left
                await writer.wait_closed()


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    agent = Agent()
    (tmp_path / wire.TOKEN).write_text("token")
    async with await asyncio.start_unix_server(agent.serve, tmp_path / wire.SOCKET):
        yield agent
        agent.may_answer.set()
        await agent.hang_up()


@pytest.fixture
async def link(tmp_path: Path, agent: Agent) -> AsyncIterator[HttpLink]:
    link = unix_link(tmp_path)
    yield link
    link.close()


async def request_state(link: HttpLink, *, within_s: float = HUNG_S) -> tuple[int, int]:
    """The connection, and which request on it this was."""
    answer = await link.request("GET", wire.STATE, within_s=within_s)
    return answer["connection"], answer["request"]


async def test_the_same_connection_serves_one_request_after_the_other(link: HttpLink) -> None:
    assert [await request_state(link) for _ in range(3)] == [(1, 1), (1, 2), (1, 3)]


async def test_every_request_says_the_token(link: HttpLink, agent: Agent) -> None:
    await request_state(link)
    await request_state(link)
    assert ["Authorization: Bearer token" in head for head in agent.heads] == [True, True]


async def test_whoever_may_not_read_the_token_any_more_asks_nothing(
    link: HttpLink, agent: Agent, tmp_path: Path
) -> None:
    """Also not over a connection that is open already."""
    await request_state(link)
    (tmp_path / wire.TOKEN).unlink()
    with pytest.raises(NoAnswer):
        await request_state(link)
    (tmp_path / wire.TOKEN).write_text("another")
    await request_state(link)
    tokens = [head.partition("Bearer ")[2].split()[0] for head in agent.heads]
    assert tokens == ["token", "another"]


async def test_a_command_does_not_wait_for_the_long_poll(link: HttpLink, agent: Agent) -> None:
    """One of the two connections is kept afterwards."""
    agent.may_answer.clear()
    poll, command = (asyncio.create_task(request_state(link)) for _ in range(2))
    while agent.connections < 2:
        await asyncio.sleep(0)
    agent.may_answer.set()
    assert {await poll, await command} == {(1, 1), (2, 1)}
    assert (await request_state(link))[1] == 2
    assert agent.connections == 2


async def test_one_that_the_agent_let_go_of_is_replaced(link: HttpLink, agent: Agent) -> None:
    """The agent was restarted, or the connection was unused for a minute."""
    await request_state(link)
    await agent.hang_up()
    assert await request_state(link) == (2, 1)


async def test_one_that_breaks_under_the_request_is_asked_again_once(
    link: HttpLink, agent: Agent
) -> None:
    """Requests may arrive twice: whether this one did is unknown."""
    await request_state(link)
    agent.may_answer.clear()
    again = asyncio.create_task(request_state(link))
    while len(agent.heads) < 2:
        await asyncio.sleep(0)
    await agent.hang_up()
    agent.may_answer.set()
    assert await again == (2, 1)


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
    link: HttpLink, agent: Agent
) -> None:
    await request_state(link)
    agent.may_answer.clear()
    with pytest.raises(NoAnswer):
        await request_state(link, within_s=0.01)
    agent.may_answer.set()
    assert await request_state(link) == (2, 1)


async def test_what_the_agent_closes_is_not_kept(link: HttpLink, agent: Agent) -> None:
    agent.sends_close = True
    assert [await request_state(link), await request_state(link)] == [(1, 1), (2, 1)]


async def test_a_refusal_leaves_the_connection(link: HttpLink, agent: Agent) -> None:
    agent.status = "409 Conflict"
    with pytest.raises(Refused) as refused:
        await request_state(link)
    assert refused.value.status == wire.STALE
    agent.status = "200 OK"
    assert await request_state(link) == (1, 2)


async def test_a_closed_link_keeps_nothing(link: HttpLink, agent: Agent) -> None:
    agent.may_answer.clear()
    last = asyncio.create_task(request_state(link))
    while not agent.heads:
        await asyncio.sleep(0)
    link.close()
    agent.may_answer.set()
    assert await last == (1, 1)
    assert link.idle is None


async def test_a_request_that_waits_for_its_turn_is_not_late(link: HttpLink, agent: Agent) -> None:
    """Its limit is for the agent, and begins when a handshake may."""
    link.turns = turns = asyncio.Semaphore(0)
    request = asyncio.create_task(request_state(link, within_s=WITHIN_S))
    await asyncio.wait({request}, timeout=2 * WITHIN_S)
    assert not request.done()
    assert not agent.heads
    turns.release()
    assert await request == (1, 1)


async def test_the_time_until_its_turn_is_no_silence_of_an_agent(
    link: HttpLink, agent: Agent
) -> None:
    agent.may_answer.clear()
    link.turns = turns = asyncio.Semaphore(0)
    request = asyncio.create_task(request_state(link, within_s=WITHIN_S))
    await asyncio.wait({request}, timeout=2 * WITHIN_S)
    began = time.monotonic()
    turns.release()
    with pytest.raises(NoAnswer) as error:
        await request
    assert WITHIN_S <= error.value.waited_s <= time.monotonic() - began


async def test_a_request_that_ends_before_its_turn_leaves_no_connection(
    link: HttpLink, agent: Agent
) -> None:
    link.turns = asyncio.Semaphore(0)
    request = asyncio.create_task(request_state(link))
    async with asyncio.timeout(HUNG_S):
        while not agent.writers:
            await asyncio.sleep(0)
        request.cancel()
        await agent.left.wait()


async def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer):
        await unix_link(tmp_path).request("GET", wire.STATE)


async def test_a_pipe_for_a_token_is_no_answer_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / wire.TOKEN)
    with pytest.raises(NoAnswer, match="is no plain file"):
        await unix_link(tmp_path).request("GET", "/", within_s=HUNG_S)


@pytest.mark.parametrize("status", ["", "fine"])
async def test_an_answer_without_a_status_is_no_answer(
    link: HttpLink, agent: Agent, status: str
) -> None:
    agent.status = status
    with pytest.raises(NoAnswer, match=link.name):
        await request_state(link)
