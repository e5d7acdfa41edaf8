"""Answers of an API server, or of a proxy before it, and what is made of them. No cluster is needed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import (
    KubernetesApi,
    Refused,
    Unreachable,
    _connection_problem,
    _decode,
)
from everstep.backends.kubernetes.avoided_nodes import HOSTNAME, NodesToAvoid
from everstep.backends.kubernetes.placing.placer import PodPlacer
from everstep.core.errors import BackendUnavailable, InvalidSpec


class Refusing:
    """An API server with one answer to each request to create something."""

    def __init__(self, status: int, message: str) -> None:
        self.answer = Refused(status=status, reason="", message=message, retry_after_s=0.0)

    async def create(self, *_: Any) -> Any:
        raise self.answer


def placer(api: Any, watch: Any = None) -> PodPlacer:
    unused: Any = None
    parts = ("books", "pods", "agents", "settings", "groups", "withdrawals", "reconciler")
    unused_parts = dict.fromkeys((*parts, "queues", "agent"), unused)
    return PodPlacer(api=api, namespace="jobs", home="jobs", watch=watch, **unused_parts)


NO_ACCOUNT = (
    'pods "a-0-g1" is forbidden: error looking up service account jobs/{0}:'
    ' serviceaccount "{0}" not found'
)
NO_RIGHT = (
    'pods is forbidden: User "system:serviceaccount:jobs:everstep-worker" cannot create resource "pods"'
    ' in API group "" in the namespace "jobs"'
)
TERMINATING = (
    'pods "a-0-g1" is forbidden: unable to create new content in namespace jobs because it is being'
    " terminated"
)
LATER = [
    (403, 'pods "a-0-g1" is forbidden: exceeded quota: cpu'),
    (403, NO_ACCOUNT.format("default")),
    (403, NO_RIGHT),
    (403, TERMINATING),
]
NEVER = [
    (400, "unknown field spec.x"),
    (403, 'pods "a-0-g1" is forbidden: violates PodSecurity "restricted:latest"'),
    (403, NO_ACCOUNT.format("trainer")),
    (422, "spec.containers: Required value"),
]
UNAVAILABLE = [
    (500, "failed calling webhook: context deadline exceeded"),
    (429, "too many requests"),
]


@pytest.mark.parametrize(("status", "message"), LATER)
async def test_a_pod_that_may_be_taken_later_waits_for_that(status: int, message: str) -> None:
    """A new namespace has no service account for a moment, a worker no right while its role is replaced."""
    api = Refusing(status, message)
    assert await placer(api)._create_one({}) is api.answer


@pytest.mark.parametrize(("status", "message"), NEVER)
async def test_a_pod_that_is_never_taken_ends_its_job(status: int, message: str) -> None:
    with pytest.raises(InvalidSpec, match="the API server refuses the pod"):
        await placer(Refusing(status, message))._create_one({})


class RefusingRules:
    """An API server that refuses a pod which is to keep off one of these nodes, and all `bad` pods."""

    def __init__(self, *nodes: str) -> None:
        self.nodes, self.created = nodes, list[Any]()

    async def create(self, _path: str, body: Any, query: Any) -> Any:
        if "bad" in body or {*self.nodes} & {*body["keeps off"]}:
            raise Refused(status=422, reason="Invalid", message="no", retry_after_s=0.0)
        if "dryRun" not in query:
            self.created.append(body)
        return body


class WatchOfNodes:
    def all_nodes(self) -> list[Any]:
        return [{"metadata": {"name": "there", "labels": {HOSTNAME: "there"}}}]


def pod_that_avoids(nodes: NodesToAvoid) -> Any:
    return {"metadata": {"name": "p", "annotations": {}}, "keeps off": [*nodes.hosts]}


BOTH = NodesToAvoid(hosts={"there", "absent"})


async def test_a_rule_of_ours_that_is_refused_names_only_nodes_that_are_there() -> None:
    """The pod is not made again because of that: its first mark is that of all nodes to avoid."""
    api = RefusingRules("absent")
    await placer(api, watch=WatchOfNodes())._create_avoiding(pod_that_avoids, BOTH)
    (pod,) = api.created
    assert pod["keeps off"] == ["there"]
    there = NodesToAvoid(hosts={"there"})
    assert pod["metadata"]["annotations"] == {
        names.KEEPS_OFF: f"{BOTH.fingerprint} {there.fingerprint}"
    }


async def test_a_pod_whose_rule_of_ours_is_never_taken_waits_and_does_not_end_its_job() -> None:
    api = RefusingRules("there")
    answer = await placer(api, watch=WatchOfNodes())._create_avoiding(pod_that_avoids, BOTH)
    assert isinstance(answer, Refused)
    assert "keeping off nodes" in str(answer)
    assert api.created == []


async def test_a_pod_that_is_refused_without_our_rule_too_ends_its_job() -> None:
    def bad_pod(nodes: NodesToAvoid) -> Any:
        return {**pod_that_avoids(nodes), "bad": True}

    with pytest.raises(InvalidSpec, match="refuses the pod"):
        await placer(RefusingRules("absent"))._create_avoiding(bad_pod, BOTH)


@pytest.mark.parametrize(("status", "message"), UNAVAILABLE)
async def test_a_pod_that_nothing_is_said_of_is_tried_again(status: int, message: str) -> None:
    with pytest.raises(BackendUnavailable):
        await placer(Refusing(status, message))._create_one({})


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"[1]", b"7", b"<html>"])
def test_an_answer_that_is_no_object_is_one_of_a_proxy(text: bytes) -> None:
    with pytest.raises(Unreachable, match="the answer is no JSON object"):
        _decode(text, "/version")


async def _ends(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _cuts_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    writer.close()


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (_ends, "it ended the connection|Connection reset by peer"),
        (_cuts_off, "its answer was cut off"),
        (None, "Connection refused"),
    ],
    ids=["ends", "cuts off", "is gone"],
)
async def test_a_silent_api_server_is_reported_by_a_sentence_without_a_path(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None, why: str
) -> None:
    server = await asyncio.start_server(serve or _ends, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if serve is None:
        server.close()
    async with KubernetesApi(Configuration(host=address)) as api:
        with pytest.raises(Unreachable) as unreachable:
            await api.get("/api/v1/namespaces/demo/pods")
    server.close()
    sentence = f"the API server at {re.escape(address)} does not answer: ({why})"
    assert re.fullmatch(sentence, str(unreachable.value))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (aiohttp.ClientConnectorDNSError(cast("Any", None), OSError(-2, "no name")), "its name"),
        (aiohttp.ClientConnectorSSLError(cast("Any", None), OSError(1, "SSL")), "its certificate"),
        (TimeoutError(), "no answer came in time"),
        (aiohttp.ClientError("what the library has to say"), "what the library has to say"),
    ],
)
def test_each_way_to_get_no_answer_has_its_words(error: Exception, why: str) -> None:
    assert _connection_problem(error).startswith(why)


async def test_an_error_without_words_names_the_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: Any, **__: Any) -> None:
        raise ConfigException("")

    monkeypatch.setattr("everstep.backends.kubernetes.api.load_kube_config", refuses)
    with pytest.raises(ConfigException, match="config: no kubeconfig"):
        await KubernetesApi.from_kubeconfig(str(tmp_path / "config"))
