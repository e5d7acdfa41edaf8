"""An agent's answer is read up to a size; a malformed one counts as none, and no rank is killed for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.backends.agents.client import link
from everstep.backends.agents.client.link import NoAnswer
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.backends.local.reconciling.slow_storage import read
from everstep.core.errors import BackendUnavailable
from everstep.protocol import wire
from tests.support.patience import HUNG_S

OK = "HTTP/1.1 200 OK\r\n"
ENDLESS = b"x" * 2**20


async def request_of_agent(home: Path, answer: bytes, *, on_and_on: bool = False) -> object:
    """What a worker makes of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        while on_and_on and not writer.is_closing():
            try:
                writer.write(ENDLESS)
                await writer.drain()
            except OSError:
                break
        writer.close()

    (home / wire.TOKEN).write_text("token")
    async with await asyncio.start_unix_server(serve, home / wire.SOCKET):
        return await AgentFolder(path=home).request("GET", wire.STATE, within_s=HUNG_S)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a path that is short enough for an address
    return Path()


async def test_an_answer_of_the_usual_size_is_read(home: Path) -> None:
    long_body = {"text": "x" * 2**20}
    body = json.dumps(long_body).encode()
    assert (
        await request_of_agent(home, f"{OK}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        == long_body
    )


@pytest.mark.parametrize(
    ("answer", "on_and_on"),
    [
        (f"{OK}Content-Length: {link.ANSWER_MOST + 1}\r\n\r\n", True),
        (f"{OK}Content-Length: -1\r\n\r\n", True),
        (f"{OK}\r\n", True),
        (OK, True),
        (f"{OK}Content-Length: 4\r\n\r\nnull", False),
        (f"{OK}Content-Length: 100000\r\n\r\n" + "[" * 100_000, False),
        (f"{OK}Content-Length: 100\r\n\r\n{{}}", False),
        ("", False),
    ],
    ids=["large", "negative", "no length", "head", "null", "deep", "short", "none"],
)
async def test_what_is_no_answer_is_not_taken_for_one(
    home: Path, answer: str, *, on_and_on: bool
) -> None:
    with pytest.raises(NoAnswer):
        await request_of_agent(home, answer.encode(), on_and_on=on_and_on)


@pytest.fixture
def storage() -> Iterator[threading.Event]:
    """Hangs until it is set."""
    event = threading.Event()
    yield event
    event.set()


async def test_hanging_storage_is_unknown_and_takes_no_thread_of_others(
    storage: threading.Event,
) -> None:
    for _ in range(50):  # more than threads that the loop has for everybody
        with pytest.raises(BackendUnavailable, match="storage of lost does not answer"):
            await read("lost", lambda: storage.wait(HUNG_S), within_s=0.01)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), HUNG_S) == "done"
    assert await read("healthy", lambda: 7) == 7
    with pytest.raises(BackendUnavailable, match="No such file"):
        await read("healthy", Path("/no/such/file").read_bytes)
