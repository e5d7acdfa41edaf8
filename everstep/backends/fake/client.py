"""The client of a fake cluster in another process: as the backend of a worker, and for commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from everstep.backends.fake import calls
from everstep.backends.fake.backend import Admin
from everstep.backends.fake.faults import USAGES
from everstep.backends.fake.verbs import ADMIN, Remote, Verbs
from everstep.backends.tools import Tools
from everstep.core.errors import BackendUnavailable
from everstep.core.world import NodeView

NO_ADDRESS = "set EVERSTEP_FAKE_ADDRESS to where the fake cluster listens"


class FakeClient(Verbs):
    """Opens a connection for each call. A cancelled call closes it, and the server drops the call."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = cast("Admin", Remote(self, Admin, ADMIN))

    async def call(self, verb: str, /, **args: Any) -> Any:
        try:
            answer = await self._answer(calls.write_call(verb, args))
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if not answer:
            raise self._unavailable("it closed the connection")
        return calls.read_answer(verb, answer)

    async def close(self) -> None:
        """Nothing is kept open between calls."""

    async def _answer(self, line: bytes) -> bytes:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=calls.LINE_LIMIT)
        try:
            writer.write(line)
            return await reader.readline()
        finally:
            writer.close()

    def _unavailable(self, why: str) -> BackendUnavailable:
        return BackendUnavailable(f"the fake cluster at {self.address} does not answer: {why}")


class FakeTools(Tools):
    """The tools of the cluster that listens at an address."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def fault_usages(self) -> Mapping[str, str]:
        return USAGES

    async def fault(self, line: str) -> None:
        async with self._cluster() as cluster:
            await cluster.admin.fault(line)

    async def nodes(self) -> tuple[NodeView, ...]:
        async with self._cluster() as cluster:
            return await cluster.nodes()

    def no_logs(self, problem: str) -> str:
        return f"{problem}: the ranks of a fake cluster are made up and print nothing"

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[FakeClient]:
        if not self._address:
            raise ValueError(NO_ADDRESS)
        cluster = FakeClient(self._address)
        try:
            yield cluster
        finally:
            await cluster.close()
