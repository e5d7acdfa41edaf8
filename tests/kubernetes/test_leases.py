"""A kubelet whose lease ends while others renew theirs, and an API server that was out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import cast

import pytest

from everstep.backends.kubernetes.api import Json, KubernetesApi, Unreachable
from everstep.backends.kubernetes.node_facts import LEASE_AGE_S
from everstep.backends.kubernetes.watch import ClusterWatch
from tests.kubernetes.objects import until

NODES = [f"n{number}" for number in range(5)]
RENEWED_EVERY_S = 10.0
ONCE = "2026-11-27T05:00:00Z"


def metadata(name: str, version: int = 1) -> Json:
    return {
        "name": name,
        "uid": name,
        "resourceVersion": str(version),
        "creationTimestamp": ONCE,
    }


class ScriptedApi:
    """Five nodes, whose leases are renewed as a test orders it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.versions = 1
        self.events: asyncio.Queue[Json | Unreachable] = asyncio.Queue()
        self.streams = 0

    async def get(self, path: str, _query: Mapping[str, str]) -> Json:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": ONCE}
        items = {
            "nodes": [{"metadata": metadata(n), "status": {"conditions": [ready]}} for n in NODES],
            "leases": [{"metadata": metadata(n), "spec": {"renewTime": "1"}} for n in NODES],
        }
        return {
            "metadata": {"resourceVersion": "1"},
            "items": items.get(path.rpartition("/")[2], []),
        }

    async def watch(
        self, path: str, _query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[Json]:
        assert silence_s > LEASE_AGE_S
        if not path.endswith("/leases"):
            await asyncio.Event().wait()
        self.streams += 1
        while True:
            event = await self.events.get()
            if isinstance(event, Unreachable):
                raise event
            yield event


class Cluster:
    """What a worker sees of it."""

    def __init__(self) -> None:
        self.api = ScriptedApi()
        self.watch = ClusterWatch(
            cast("KubernetesApi", self.api),
            ["team-a"],
            "books",
            add_news=lambda _job: None,
            clock=lambda: self.api.now,
        )

    async def renew(self, *nodes: str) -> None:
        for node in nodes:
            self.api.versions += 1
            renewed = metadata(node, self.api.versions)
            lease = {"metadata": renewed, "spec": {"renewTime": str(self.api.versions)}}
            self.api.events.put_nowait({"type": "MODIFIED", "object": lease})
            version = renewed["resourceVersion"]
            leases = self.watch.leases.objects
            await until(lambda: leases[node]["metadata"]["resourceVersion"] == version)  # noqa: B023

    async def cut(self) -> None:
        """The stream of leases breaks, and is opened again."""
        before = self.api.streams
        self.api.events.put_nowait(Unreachable("connection reset"))
        await until(lambda: self.api.streams > before)

    def silent(self) -> list[str | None]:
        return [fact.node for fact in self.watch.faults() if fact.kind == "subhealth.lease"]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    one = Cluster()
    await one.watch.start()
    yield one
    await one.watch.close()


@pytest.mark.parametrize(
    ("outage_s", "is_cut"),
    [(LEASE_AGE_S, False), (LEASE_AGE_S + 10.0, False), (8.0, True), (100.0, True)],
)
async def test_no_kubelet_is_silent_that_could_not_renew_its_lease_or_was_not_heard(
    cluster: Cluster, outage_s: float, is_cut: bool
) -> None:
    cluster.api.now += RENEWED_EVERY_S
    await cluster.renew("n0")
    cluster.api.now += outage_s
    if is_cut:
        await cluster.cut()
    await cluster.renew("n0")
    assert cluster.silent() == []


async def test_a_kubelet_that_stays_silent_after_an_outage_is_noted(cluster: Cluster) -> None:
    cluster.api.now += 100.0
    await cluster.cut()
    for _ in range(2):
        await cluster.renew(*NODES[:-1])
        assert cluster.silent() == []
        cluster.api.now += RENEWED_EVERY_S
    await cluster.renew(*NODES[:-1])
    assert cluster.silent() == [NODES[-1]]
