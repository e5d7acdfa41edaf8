"""A link to an agent: sends a request, returns the answer or raises. The transport is behind `Link`.

HTTP/1.1 as in `wire`, over a unix socket, or over TCP with TLS.
Why no HTTP library is used: docs/decisions/0017-the-way-to-an-agent.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from everstep.agent.storage import files
from everstep.protocol import wire

REQUEST_S = 1.0
"""Time that an agent has to answer a command; it takes milliseconds unless it is stopped."""

HEAD_MOST = 64 * 1024
ANSWER_MOST = 16 * 1024 * 1024
"""Bytes. `quotes.ALL_QUOTES_MOST` bounds what an agent's state holds of the output of its ranks."""

SSLProtocol.max_size = 32 * 1024
"""The buffer of each connection, in memory from its begin: a record of TLS has 16 KB at most. The 256 KB of
asyncio would be most of the memory of a worker with a thousand pods."""

UNREADABLE = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


class NoAnswer(Exception):
    """The agent did not answer: it is not there yet, not there any more, or stopped.

    `waited_s`: how long the request was with the agent, without the time that it waited for its turn.
    """

    def __init__(self, why: str, *, waited_s: float = 0.0) -> None:
        super().__init__(why)
        self.waited_s = waited_s


class Refused(Exception):
    """The agent answered that it will not, or cannot do that: `why`."""

    waited_s: ClassVar[float] = 0.0

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{status}: {why}")
        self.status = status
        self.why = why


class Link(Protocol):
    """The way to one agent."""

    async def request(
        self, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        """Send one request, which may arrive twice. Raises `NoAnswer` or `Refused`."""

    def close(self) -> None:
        """Close the connection."""


async def request_once(
    link: Link, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
) -> dict[str, Any]:
    """Send one request and close the link."""
    try:
        return await link.request(method, path, body, within_s=within_s)
    finally:
        link.close()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Response(NamedTuple):
    """An answer, and whether the connection may be used again."""

    status: int
    content: dict[str, Any]
    goes_on: bool


@dataclass(slots=True, kw_only=True)
class HttpLink(Link):
    """Keeps one idle connection for the next request; mostly a long poll is using it.

    `turns` bounds how many links are in a handshake at once: each takes this process some of its time, and a
    thousand of them at once would all be too late. The time limit of a request begins with its turn.
    """

    name: str
    connect: Callable[[], Awaitable[socket.socket]]
    token: Callable[[], str]
    tls: ssl.SSLContext | None = None
    connect_s: float = REQUEST_S  # a host that is off answers nothing for minutes
    turns: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)
    is_closed: bool = False
    idle: Streams | None = field(default=None, repr=False)

    async def request(
        self, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        answer = await self._send(method, path, body, within_s)
        if answer.status >= 400:
            raise Refused(answer.status, str(answer.content.get("error", answer.content)))
        return answer.content

    async def _send(self, method: str, path: str, body: Any, within_s: float) -> Response:
        """Send the request over the idle connection, else over a new one."""
        async with self._limit(within_s):
            request = self._request(method, path, body)
            idle, self.idle = self.idle, None
            if idle is not None:
                # The agent may have ended, or closed an idle connection: then a new one is made.
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    return await self._exchange(idle, request)
        streams = await self._dial()
        async with self._limit(within_s):
            return await self._exchange(streams, request)

    @asynccontextmanager
    async def _limit(self, within_s: float) -> AsyncIterator[None]:
        """Raise NoAnswer where this takes longer, or fails."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(within_s):
                yield
        except UNREADABLE as error:
            raise NoAnswer(f"{self.name}: {error!r}", waited_s=clock() - began) from None

    def _request(self, method: str, path: str, body: Any) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer {self.token()}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        return head.encode() + payload

    async def _dial(self) -> Streams:
        async with self._limit(self.connect_s):
            connection = await self.connect()
        closes_itself = True
        try:
            async with self.turns, self._limit(self.connect_s):
                closes_itself = False  # from here on the transport closes it
                name = None if self.tls is None else wire.HOST_NAME
                return await asyncio.open_connection(
                    sock=connection, ssl=self.tls, server_hostname=name, limit=HEAD_MOST
                )
        finally:
            if closes_itself:
                connection.close()

    async def _exchange(self, streams: Streams, request: bytes) -> Response:
        """Send the request and read the answer; then keep the connection if it may be used again."""
        reader, writer = streams
        may_keep = False
        try:
            writer.write(request)
            answer = await _read(reader)
            may_keep = answer.goes_on and self.idle is None and not self.is_closed
        finally:
            if may_keep:
                self.idle = streams
            else:
                writer.transport.abort()  # as in `close`
        return answer

    def close(self) -> None:
        self.is_closed = True
        if self.idle is not None:
            # Nothing is on its way, and a close under TLS waits for an agent that may be cut off.
            self.idle[1].transport.abort()
            self.idle = None


async def _read(reader: asyncio.StreamReader) -> Response:
    """Read one answer. Raises one of `UNREADABLE`, which become NoAnswer with the name of the agent."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
    length = headers.get("content-length")
    if length is None or int(length) > ANSWER_MOST:
        raise ValueError(
            f"an answer needs a Content-Length of at most {ANSWER_MOST} bytes, not {length}"
        )
    raw = await reader.readexactly(int(length))
    try:
        content = json.loads(raw) if raw else {}
    except RecursionError:
        content = None
    if not isinstance(content, dict):
        raise ValueError("an answer is no JSON object")
    status = int(head[0].partition(" ")[2].partition(" ")[0])
    return Response(status=status, content=content, goes_on=headers.get("connection") != "close")


def unix_link(folder: Path) -> HttpLink:
    """A link to an agent on this machine, by the socket and the token in its folder."""

    async def connect() -> socket.socket:
        # The folder's own path may be too long for a socket's address.
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            return await _connected(socket.AF_UNIX, f"/proc/self/fd/{handle}/{wire.SOCKET}")
        finally:
            os.close(handle)

    def token() -> str:
        return files.read(folder / wire.TOKEN, wire.SMALL_FILE_MAX).decode().strip()

    return HttpLink(name=folder.name, connect=connect, token=token)


def tls_link(
    name: str,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext,
    token: str,
    connect_s: float = REQUEST_S,
    turns: AbstractAsyncContextManager[object] | None = None,
) -> HttpLink:
    """A link to an agent on a port; `tls` trusts only the authority of its job, which signed for it."""

    async def connect() -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return await _connected(family, (host, port))

    return HttpLink(
        name=name,
        connect=connect,
        token=lambda: token,
        tls=tls,
        connect_s=connect_s,
        turns=turns or nullcontext(),
    )


async def _connected(family: socket.AddressFamily, address: object) -> socket.socket:
    connection = socket.socket(family)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, address)  # type: ignore[arg-type]
    except BaseException:
        connection.close()
        raise
    return connection
