"""An HTTP server in front of the API server, which answers as one in trouble or behind a poor network.

Clients send it plain HTTP, so that a watch differs from another request; it passes their tokens on,
and uses TLS to the API server. What cuts and holds whole connections is `wire.py`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from yarl import URL

from tests.testbed.api import UNREACHABLE
from tests.testbed.controlplane import ClusterAccess

RETRY_AFTER_S = 1
BUSY = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "TooManyRequests",
    "message": "too many requests, please try again later",
    "code": 429,
}
OF_ONE_HOP = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "upgrade"})
"""Headers that each of the two connections has for itself."""


class Mood(Enum):
    """How requests are answered."""

    CLEAR = "clear"
    BUSY = "busy"  # every other request is refused with 429, as by an API server that has too many
    SLOW = "slow"  # each answer, and each event of a watch, comes late
    HALF_OPEN = "half-open"  # watches stay open and bring nothing more; other requests are answered
    TORN = "torn"  # each request is carried out, and its answer ends in the middle


class Torn(Exception):
    """The connection to the client ends here."""


class Weather:
    """A port in front of the API server's, whose answers change with its mood."""

    def __init__(self, url: str, *, ca_file: Path | None = None) -> None:
        self.met = 0
        """How many answers, and pieces of watches, were not as the API server gave them."""
        self._mood = Mood.CLEAR
        self._late_s = 0.0
        self._requests = 0
        self._url = url
        self._ca_file = ca_file
        self._watches: list[web.Request] = []  # which are open

    @classmethod
    def before(cls, access: ClusterAccess) -> Self:
        return cls(access.url, ca_file=Path(access.ca_file))

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context(cafile=str(self._ca_file)) if self._ca_file else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, _1: type[BaseException] | None, _2: BaseException | None, _3: TracebackType | None
    ) -> None:
        self._cut_watches()
        await self._runner.cleanup()
        await self._session.close()

    def kubeconfig(self, folder: Path, *, of: str) -> str:
        """A file that leads through here, for the user of that one."""
        content = json.loads(Path(of).read_text())
        content["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        path = folder / "weather.kubeconfig"
        path.write_text(json.dumps(content))
        return str(path)

    def turn(self, mood: Mood, *, late_s: float = 0.0) -> None:
        """Answer in this way from now on. Watches that brought nothing end: what they lacked is lost."""
        if self._mood is Mood.HALF_OPEN:
            self._cut_watches()
        self._mood, self._late_s, self._requests = mood, late_s, 0

    def _cut_watches(self) -> None:
        for request in self._watches:
            abort(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._requests += 1
        if self._mood is Mood.BUSY and self._requests % 2:
            self.met += 1
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return web.json_response(BUSY, status=429, headers=headers)
        is_watch = "watch" in request.query
        if is_watch:
            self._watches.append(request)
        try:
            return await self._passed_on(request, is_watch=is_watch)
        except (Torn, *UNREACHABLE):
            abort(request)
            return web.Response()  # which the client does not get
        finally:
            if is_watch:
                self._watches.remove(request)

    async def _passed_on(self, request: web.Request, *, is_watch: bool) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in OF_ONE_HOP}
        url = URL(self._url + request.raw_path, encoded=True)
        body = await request.read()
        async with self._session.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        ) as answer:
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            for name, value in answer.headers.items():
                if name.lower() not in OF_ONE_HOP:
                    response.headers[name] = value
            await response.prepare(request)
            async for piece in self._pieces(answer, is_watch=is_watch):
                await response.write(piece)
            await response.write_eof()
        return response

    async def _pieces(
        self, answer: aiohttp.ClientResponse, *, is_watch: bool
    ) -> AsyncIterator[bytes]:
        """What of the answer reaches the client; `Torn` where it gets no more."""
        async for piece in answer.content.iter_any():
            self.met += self._mood in {Mood.SLOW, Mood.TORN}
            match self._mood:
                case Mood.SLOW:
                    await asyncio.sleep(self._late_s)
                case Mood.HALF_OPEN if is_watch:
                    self.met += 1
                    continue
                case Mood.TORN:
                    yield piece[: len(piece) // 2]
                    raise Torn
                case _:
                    pass
            yield piece


def abort(request: web.Request) -> None:
    """End the connection of a request at once, as a router that restarts does."""
    if request.transport is not None:
        request.transport.abort()
