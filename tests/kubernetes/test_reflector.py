"""The reflector's copy is what the API server has, whatever happens on the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused
from everstep.backends.kubernetes.reflector import SILENCE_S, Backoff, Reflector, Source
from tests.kubernetes.objects import until
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess, ControlPlane, until_pods_can_be_created
from tests.testbed.wire import Wire

QUICK = Backoff(shortest_s=0.05, longest_s=0.4)
UNREADABLE = "unreadable"
"""An object of this name, or with this value, is one that nothing here understands."""


class Watched:
    """A reflector of the ConfigMaps of one namespace with a label, and what it has reported."""

    def __init__(self, source: Source, namespace: str, silence_s: float) -> None:
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"
        self.changes: list[tuple[str, str]] = []
        self.reflector = Reflector(
            source,
            self.path,
            query={"labelSelector": "reflected"},
            on_change=self._changed,
            silence_s=silence_s,
            backoff=QUICK,
        )

    def _changed(self, new: Json | None, old: Json | None) -> None:
        item: Json = new or old or {}
        if UNREADABLE in (item["metadata"]["name"], item["data"]["value"]):
            raise TypeError("fromisoformat: argument must be str")
        kind = "gone" if new is None else "new" if old is None else "changed"
        self.changes.append((kind, str((new or old or {})["metadata"]["name"])))

    @property
    def names(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.reflector.objects.values()}


@contextlib.asynccontextmanager
async def watched(
    kubeconfig: str, namespace: str, silence_s: float = SILENCE_S
) -> AsyncIterator[Watched]:
    async with await KubernetesApi.from_kubeconfig(kubeconfig) as source:
        one = Watched(source, namespace, silence_s)
        running = asyncio.create_task(one.reflector.run())
        try:
            await until(one.reflector.synchronized.is_set)
            yield one
            assert not running.done()
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@pytest.fixture
async def place(api: Api, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A namespace of one test."""
    created = await api.create("/api/v1/namespaces", {"metadata": {"generateName": "reflector-"}})
    name = created["metadata"]["name"]
    yield str(name)
    await api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
async def wire(cluster: ClusterAccess) -> AsyncIterator[Wire]:
    async with Wire(cluster) as one:
        yield one


def config_map(name: str, value: str = "") -> Json:
    return {"metadata": {"name": name, "labels": {"reflected": "yes"}}, "data": {"value": value}}


async def test_it_lists_and_follows(cluster: ClusterAccess, api: Api, place: str) -> None:
    path = f"/api/v1/namespaces/{place}/configmaps"
    await api.create(path, config_map("before"))
    async with watched(cluster.kubeconfig, place) as one:
        await api.create(path, config_map("later"))
        await until(lambda: one.names == {"before", "later"})
        await api.patch(f"{path}/later", {"data": {"value": "2"}})
        await api.delete(f"{path}/before")
        await until(lambda: one.names == {"later"})
        assert one.changes == [
            ("new", "before"),
            ("new", "later"),
            ("changed", "later"),
            ("gone", "before"),
        ]


async def test_an_object_that_cannot_be_read_is_named_and_keeps_no_other_one_out(
    cluster: ClusterAccess, api: Api, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/api/v1/namespaces/{place}/configmaps"
    await api.create(path, config_map(UNREADABLE))
    await api.create(path, config_map("listed"))
    async with watched(cluster.kubeconfig, place) as one:
        assert one.names == {"listed"}
        await api.patch(f"{path}/{UNREADABLE}", {"data": {"value": "2"}})
        await api.create(path, config_map("followed"))
        await until(lambda: one.names == {"listed", "followed"})
        await api.delete(f"{path}/{UNREADABLE}")
        await api.delete(f"{path}/listed")
        await until(lambda: one.names == {"followed"})
    assert f"{path}: {UNREADABLE} cannot be read" in caplog.text


async def test_of_an_object_that_becomes_unreadable_the_last_form_counts_until_it_is_gone(
    cluster: ClusterAccess, api: Api, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/api/v1/namespaces/{place}/configmaps"
    await api.create(path, config_map("listed", "1"))
    async with watched(cluster.kubeconfig, place) as one:
        await api.patch(f"{path}/listed", {"data": {"value": UNREADABLE}})
        await until(lambda: f"{path}: listed cannot be read" in caplog.text)
        assert [item["data"]["value"] for item in one.reflector.objects.values()] == ["1"]
        await api.delete(f"{path}/listed")
        await until(lambda: not one.names)
        assert one.changes == [("new", "listed"), ("gone", "listed")]


class Nonsense:
    """A proxy that answers with JSON of another shape at first, then passes requests on."""

    def __init__(self, source: KubernetesApi) -> None:
        self.answers: list[Json] = [{}, {"items": [{}], "metadata": {}}]
        self._source = source
        self.watch = source.watch

    async def get(self, path: str, query: Mapping[str, str]) -> Json:
        return self.answers.pop() if self.answers else await self._source.get(path, query)


async def test_an_answer_that_makes_no_sense_is_logged_and_requested_again(
    cluster: ClusterAccess, api: Api, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    await api.create(f"/api/v1/namespaces/{place}/configmaps", config_map("listed"))
    async with await KubernetesApi.from_kubeconfig(cluster.kubeconfig) as source:
        one = Watched(Nonsense(source), place, SILENCE_S)
        running = asyncio.create_task(one.reflector.run())
        await until(lambda: running.done() or one.names == {"listed"})
        assert not running.done()
        running.cancel()
    assert f"{one.path}: what the API server sends" in caplog.text


class ShortWatches:
    """An API server behind a proxy that ends each of the first watches: with or without an event before.

    `has_forgotten`: it has no changes since then any more, so that all has to be listed again.
    """

    def __init__(self, *, ends: int, has_events: bool, has_forgotten: bool) -> None:
        self.opened = 0
        self._ends, self._has_events, self._has_forgotten = ends, has_events, has_forgotten

    async def get(self, path: str, query: Mapping[str, str]) -> Json:
        del path, query
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    async def watch(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncGenerator[Json]:
        del path, query, silence_s
        self.opened += 1
        if self.opened > self._ends:
            await asyncio.Event().wait()
        if self._has_events:
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}
        if self._has_forgotten:
            raise Refused(status=410, reason="Expired", message="too old", retry_after_s=0.0)


@pytest.mark.parametrize(
    ("has_events", "has_forgotten", "failures"),
    [(True, False, 1), (False, False, 5), (True, True, 5)],
)
async def test_only_watches_that_bring_nothing_are_opened_later_each_time(
    has_events: bool, has_forgotten: bool, failures: int
) -> None:
    source = ShortWatches(ends=5, has_events=has_events, has_forgotten=has_forgotten)
    one = Watched(source, "any", SILENCE_S)
    running = asyncio.create_task(one.reflector.run())
    await until(lambda: source.opened == 6)
    running.cancel()
    assert one.reflector._backoff.failures == failures


async def test_a_list_of_several_pages_is_one_list(
    cluster: ClusterAccess, api: Api, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.backends.kubernetes.api.PAGE", 2)
    names = {f"page-{number}" for number in range(5)}
    for name in names:
        await api.create(f"/api/v1/namespaces/{place}/configmaps", config_map(name))
    async with watched(cluster.kubeconfig, place) as one:
        assert one.names == names


async def test_after_a_cut_nothing_is_missed_and_nothing_is_reported_twice(
    wire: Wire, api: Api, place: str, tmp_path: Path
) -> None:
    path = f"/api/v1/namespaces/{place}/configmaps"
    await api.create(path, config_map("kept"))
    async with watched(wire.kubeconfig(tmp_path), place) as one:
        wire.refuse()
        await api.create(path, config_map("new"))
        await api.create(path, config_map("brief"))
        await api.delete(f"{path}/brief")
        wire.accept()
        await until(lambda: one.changes[-1] == ("gone", "brief"))
        assert one.changes == [
            ("new", "kept"),
            ("new", "new"),
            ("new", "brief"),
            ("gone", "brief"),
        ]


async def test_a_silent_connection_is_given_up(
    wire: Wire, api: Api, place: str, tmp_path: Path
) -> None:
    path = f"/api/v1/namespaces/{place}/configmaps"
    async with watched(wire.kubeconfig(tmp_path), place, silence_s=0.5) as one:
        wire.hold()
        await api.create(path, config_map("unheard"))
        before = wire.connections
        await until(lambda: wire.connections > before)
        wire.cut()  # what was held back on the old connections never arrives
        wire.release()
        await until(lambda: one.names == {"unheard"})


async def test_objects_that_went_while_the_server_forgot_are_reported_gone(tmp_path: Path) -> None:
    """etcd is compacted and the API server killed: the old version is answered by 410."""
    control_plane = await ControlPlane.start(tmp_path / "control-plane")
    access = control_plane.access
    path = "/api/v1/namespaces/default/configmaps"
    try:
        async with access.api() as api, Wire(access) as wire:
            await until_pods_can_be_created(api, "default")
            for name in ("stays", "goes"):
                await api.create(path, config_map(name))
            async with watched(wire.kubeconfig(tmp_path), "default") as one:
                wire.refuse()
                await api.delete(f"{path}/goes")
                await api.create(path, config_map("comes"))
                await compact(control_plane)
                control_plane.child("kube-apiserver").kill()
                await control_plane.start_api_server()
                wire.accept()
                await until(lambda: one.names == {"stays", "comes"})
                assert sorted(one.changes[2:]) == [("gone", "goes"), ("new", "comes")]
    finally:
        control_plane.kill()


async def compact(control_plane: ControlPlane) -> None:
    """Let etcd forget every earlier version of every object."""
    async with aiohttp.ClientSession(base_url=control_plane.etcd_url) as session:
        async with session.post("/v3/kv/range", json={"key": "AA=="}) as reply:
            revision = (await reply.json())["header"]["revision"]
        async with session.post("/v3/kv/compaction", json={"revision": revision}) as reply:
            assert reply.status == 200, await reply.text()
