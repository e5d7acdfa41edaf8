"""A worker whose copy of the nodes is behind that of the pods: an absent node is new, or removed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType

import pytest

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.watch import ClusterWatch
from tests.kubernetes.objects import made, shell_pod, until
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess

BOOKS = "late"


class Source(KubernetesApi):
    """Counts the answers about nodes."""

    answers = 0

    async def get(self, path: str, query: Mapping[str, str] = MappingProxyType({})) -> Json:
        reply = await super().get(path, query)
        self.answers += path == "/api/v1/nodes"
        return reply


class Late:
    """A worker that follows pods alone: its stream of nodes sends nothing."""

    def __init__(self, source: Source, api: Api, namespace: str) -> None:
        self.source = source
        self.watch = ClusterWatch(source, [namespace], BOOKS, add_news=self._add_news)
        self.news: list[str] = []
        self._api = api
        self._namespace = namespace

    def _add_news(self, job: str) -> None:
        self.news.append(job)

    async def bind(self, pod: str, node: str) -> None:
        """A pod of a job on that node, which the worker has seen."""
        body = shell_pod(pod, nodeName=node)
        body["metadata"]["labels"] = names.labels(BOOKS, "j")
        body["metadata"]["annotations"] = {names.JOB: "j"}
        created = await self._api.create(f"/api/v1/namespaces/{self._namespace}/pods", body)
        await until(lambda: self.watch.pod(created["metadata"]["uid"]) is not None)


@pytest.fixture
async def late(cluster: ClusterAccess, api: Api, namespace: str) -> AsyncIterator[Late]:
    async with await Source.from_kubeconfig(cluster.kubeconfig) as source:
        worker = Late(source, api, namespace)
        pods = worker.watch.pods[namespace]
        following = asyncio.create_task(pods.run())
        await pods.synchronized.wait()
        yield worker
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await worker.watch.close()


async def test_a_node_that_the_copy_does_not_have_yet_is_not_taken_for_removed(
    late: Late, api: Api, namespace: str
) -> None:
    name = f"{namespace}-new"
    async with made(api, "/api/v1/nodes", {"metadata": {"name": name}}):
        await late.bind("on-new", name)
        assert late.watch.service(name) == ("cut_off", None)
        assert late.watch.faults_of(name) == []
        await until(lambda: late.source.answers)
        assert late.watch.service(name) == ("cut_off", None)


async def test_a_node_counts_as_removed_once_the_api_server_has_none_of_its_name(
    late: Late, api: Api, namespace: str
) -> None:
    name = f"{namespace}-brief"
    async with made(api, "/api/v1/nodes", {"metadata": {"name": name}}):
        await late.bind("on-brief", name)
    await until(lambda: late.watch.service(name) == ("down", None))
    (fault,) = late.watch.faults_of(name)
    assert (fault.kind, fault.message) == ("node.down", f"{name} was removed from the cluster")
    assert late.news[-1] == "", "all jobs look again"
    async with made(api, "/api/v1/nodes", {"metadata": {"name": name}}):
        await late.bind("on-its-successor", name)
        assert late.watch.service(name) == ("cut_off", None), "another one of its name"
        assert late.watch.faults_of(name) == []
