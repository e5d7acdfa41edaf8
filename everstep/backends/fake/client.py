"""The protocol over a fake cluster in another process.

A connection carries one call at a time, and idle ones are used again. A call that is cancelled takes
its connection with it, which is how the server learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

from everstep.backends.fake import wire
from everstep.backends.fake.backend import Admin
from everstep.backends.fake.verbs import ADMIN, Remote, Verbs
from everstep.core.errors import BackendUnavailable

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FakeClient(Verbs):
    """Connects when called, and anew after any trouble. Belongs to one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = cast("Admin", Remote(self, Admin, ADMIN))
        self._idle: list[Connection] = []

    async def call(self, verb: str, /, **args: Any) -> Any:
        line = wire.write_call(verb, args)
        try:
            said = await self._ask_again(line) if self._idle else await self._ask_anew(line)
            # An idle connection may be one of a server that is gone. Verbs may be repeated.
            if not said and not verb.startswith(ADMIN):
                said = await self._ask_anew(line)
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if not said:
            raise self._unavailable("it closed the connection")
        return wire.read_answer(verb, said)

    async def close(self) -> None:
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _ask_again(self, line: bytes) -> bytes:
        try:
            return await self._ask(self._idle.pop(), line)
        except OSError:
            return b""

    async def _ask_anew(self, line: bytes) -> bytes:
        host, _, port = self.address.rpartition(":")
        connection = await asyncio.open_connection(host, int(port), limit=wire.LINE_LIMIT)
        return await self._ask(connection, line)

    async def _ask(self, connection: Connection, line: bytes) -> bytes:
        reader, writer = connection
        said = b""
        try:
            writer.write(line)
            await writer.drain()
            said = await reader.readline()
        finally:
            if said:
                self._idle.append(connection)
            else:
                writer.close()
        return said

    def _unavailable(self, why: str) -> BackendUnavailable:
        return BackendUnavailable(f"the fake cluster at {self.address} does not answer: {why}")
