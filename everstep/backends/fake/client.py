"""The backend of a fake cluster in another process."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from everstep.backends.fake import wire
from everstep.backends.fake.backend import Admin
from everstep.backends.fake.verbs import ADMIN, Remote, Verbs
from everstep.core.errors import BackendUnavailable


class FakeClient(Verbs):
    """Opens a connection for each call. A cancelled call closes it, and the server drops the call."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = cast("Admin", Remote(self, Admin, ADMIN))

    async def call(self, verb: str, /, **args: Any) -> Any:
        try:
            answer = await self._answer(wire.write_call(verb, args))
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if not answer:
            raise self._unavailable("it closed the connection")
        return wire.read_answer(verb, answer)

    async def close(self) -> None:
        """Nothing is kept open between calls."""

    async def _answer(self, line: bytes) -> bytes:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=wire.LINE_LIMIT)
        try:
            writer.write(line)
            return await reader.readline()
        finally:
            writer.close()

    def _unavailable(self, why: str) -> BackendUnavailable:
        return BackendUnavailable(f"the fake cluster at {self.address} does not answer: {why}")
