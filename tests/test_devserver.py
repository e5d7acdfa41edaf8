"""The doors of the server that `dev` and `run` bring along, tried as a web page would."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from everstep import devserver
from everstep.devserver import DevServer
from everstep.ui_proxy import hidden_address, refusal
from tests.support.patience import HUNG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    head: str
    body: str


async def ask(
    port: int, path: str, *headers: str, body: str | None = None, address: str = "127.0.0.1"
) -> Answer:
    """One request with exactly these headers, as no well-behaved client would send it."""
    reader, writer = await asyncio.open_connection(address, port)
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", *headers, "Connection: close"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    writer.write("\r\n".join([*lines, "", body or ""]).encode())
    async with asyncio.timeout(HUNG_S):
        text = (await reader.read()).decode(errors="replace")
    writer.close()
    head, _, rest = text.partition("\r\n\r\n")
    return Answer(status=int(head.split()[1]), head=head, body=rest)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[DevServer]:
    running = await devserver.start(folder)
    host = f"Host: 127.0.0.1:{running.ui_port}"
    # The UI's own connection to the server takes a moment longer than we do.
    while (await ask(running.ui_port, "/api/v1/namespaces", host)).status != 200:
        await asyncio.sleep(0.05)
    yield running
    running.end()


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """One for all tests that leave it alive: it takes a second to start."""
    async with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


START = json.dumps({"workflowType": {"name": "TrainingJob"}, "taskQueue": {"name": "everstep"}})


def starts(workflow_id: str) -> str:
    """The path of a request that starts this workflow."""
    return f"/api/v1/namespaces/default/workflows/{workflow_id}"


async def is_started(server: DevServer, workflow_id: str) -> bool:
    client = await Client.connect(server.address)
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError:
        return False
    return True


def listening(server: DevServer) -> list[tuple[str, int]]:
    """Where the server's process listens, and the proxy is not."""
    pid = server._process._process.pid
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        inodes.update(re.findall(r"socket:\[(\d+)\]", str(link.readlink())))
    results = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            address, _, port = words[1].partition(":")
            octets = bytes.fromhex(address)[::-1]
            results.append((".".join(map(str, octets)), int(port, 16)))
    return results


async def test_no_port_of_the_server_lets_a_web_page_start_a_job(server: DevServer) -> None:
    """A form of any page may post text to any port of loopback, without a preflight."""
    ports = [port for address, port in listening(server) if address == "127.0.0.1"]
    assert server.port in ports
    answered = []
    for port in [*ports, server.ui_port]:
        headers = (
            f"Host: 127.0.0.1:{port}",
            "Origin: http://evil.test",
            "Content-Type: text/plain",
        )
        try:
            answered.append((await ask(port, starts("form"), *headers, body=START)).status)
        except (OSError, IndexError, ValueError):  # it speaks no HTTP/1.1
            continue
    assert answered.count(403) == 2, "the HTTP API and the UI"
    assert all(status >= 400 for status in answered)
    assert not await is_started(server, "form")


async def test_a_page_whose_name_points_at_loopback_is_not_the_ui(server: DevServer) -> None:
    host = f"Host: evil.test:{server.ui_port}"
    assert (await ask(server.ui_port, "/api/v1/namespaces", host)).status == 403
    cookie = ("Cookie: _csrf=x", "X-CSRF-Token: x", f"Origin: http://evil.test:{server.ui_port}")
    assert (await ask(server.ui_port, starts("other"), host, *cookie, body=START)).status == 403
    assert not await is_started(server, "other")


async def test_the_uis_own_page_may_do_everything(server: DevServer) -> None:
    here = f"127.0.0.1:{server.ui_port}"
    page = await ask(server.ui_port, "/", f"Host: {here}")
    assert (page.status, "<!doctype html>" in page.body) == (200, True)
    (token, *_) = re.findall(r"_csrf=(\w+)", page.head)
    headers = (f"Cookie: _csrf={token}", f"X-CSRF-Token: {token}", f"Origin: http://{here}")
    answer = await ask(server.ui_port, starts("page"), f"Host: {here}", *headers, body=START)
    assert answer.status == 200
    assert await is_started(server, "page")


async def test_the_ui_itself_is_where_no_page_looks_for_it(server: DevServer) -> None:
    (address,) = {address for address, _ in listening(server)} - {"127.0.0.1"}
    assert address.startswith("127.")
    assert len({hidden_address() for _ in range(100)}) > 95


async def test_a_link_goes_on_after_the_server_died(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server._process.end(within_s=HUNG_S)
        host = f"Host: 127.0.0.1:{server.ui_port}"
        assert (await ask(server.ui_port, "/", host)).status == 502
        await server.ensure_alive()
        while (await ask(server.ui_port, "/", host)).status != 200:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        (["Host: 127.0.0.1:8233"], True),
        (["host: LOCALHOST:8233"], True),
        (["Host: localhost"], True),
        (["Host: localhost:9000", "Origin: http://localhost:9000"], True),  # a forwarded port
        (["Host: [::1]:9000"], True),
        (["Host: localhost:8233", "Origin: http://localhost:3000"], False),  # another page here
        (["Host: localhost:8233", "Origin: null"], False),
        (["Host: 127.0.0.1:8233", "Origin: http://evil.test"], False),
        (["Host: evil.test:8233"], False),
        (["Host: evil.test"], False),
        (["Host: localhost.evil.test:8233"], False),
        (["Host: evil.test:8233", "Origin: http://evil.test:8233"], False),
        (["Host: localhost:8233", "Host: evil.test"], False),
        ([], False),
    ],
)
def test_which_requests_are_let_in(headers: list[str], is_let_in: bool) -> None:
    assert (refusal(["GET / HTTP/1.1", *headers]) is None) == is_let_in
