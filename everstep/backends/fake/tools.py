"""The fake cluster for who operates it: faults and nodes, over its socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from everstep.backends.fake.client import FakeClient
from everstep.backends.fake.faults import USAGES
from everstep.backends.tools import Tools
from everstep.core.world import NodeView

NO_ADDRESS = "set EVERSTEP_FAKE_ADDRESS to where the fake cluster listens"


class FakeTools(Tools):
    """Of the cluster that listens there."""

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
