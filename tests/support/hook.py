"""A webhook of a test's own: a real HTTP server on this machine, in a mood that the test chooses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from everstep.backends.fake.server import close_listener
from tests.support.patience import HUNG_S

Mood = Literal[
    "takes",
    "takes once, then hangs",
    "fails",
    "moved",
    "hangs",
    "drips",
    "hangs up",
    "talks nonsense",
]

ANSWERS: dict[str, bytes] = {
    "takes": b"HTTP/1.1 204 No Content\r\n\r\n",
    "fails": b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    "moved": b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\n\r\n",
    "talks nonsense": b"220 mail.example ESMTP\r\n",
    "hangs up": b"",
}


@dataclass(slots=True)
class Hook:
    """A webhook: the messages it received, and those it accepted."""

    mood: Mood = "takes"
    port: int = 0
    slow_s: float = 0.0
    received: list[dict[str, Any]] = field(default_factory=list)
    accepted: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/notices?of=everstep"

    @property
    def events(self) -> list[str]:
        return [message["event"] for message in self.accepted]

    async def until(self, claim: Callable[[Hook], bool], *, within_s: float = HUNG_S) -> None:
        """Return once the claim is true; it is checked at every request."""
        async with asyncio.timeout(within_s):
            while not claim(self):
                self.changed.clear()
                await self.changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                int(line.partition(":")[2])
                for line in head.splitlines()
                if line.lower().startswith("content-length:")
            )
            body = await reader.readexactly(length)
            message = json.loads(body)
            mood = self.mood
            if mood == "takes once, then hangs":
                mood = "hangs" if self.accepted else "takes"
            self.heads.append(head)
            self.bodies.append(body)
            self.received.append(message)
            if mood == "takes":
                self.accepted.append(message)
            self.changed.set()
            await self._answer(mood, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked is gone
        finally:
            writer.close()

    async def _answer(
        self, mood: Mood, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if mood == "hangs":
            await reader.read()  # until the other side has enough
            return
        while mood == "drips" and not reader.at_eof():
            writer.write(b"H")
            await writer.drain()
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.slow_s)
        writer.write(ANSWERS.get(mood, b""))
        await writer.drain()


@asynccontextmanager
async def hooked(mood: Mood = "takes", *, port: int = 0) -> AsyncIterator[Hook]:
    """Listens while the test is inside."""
    hook = Hook(mood=mood)
    server = await asyncio.start_server(hook.serve, "127.0.0.1", port)
    hook.port = server.sockets[0].getsockname()[1]
    try:
        yield hook
    finally:
        await close_listener(server)
