"""The link to a pod is made at its first request, however many come at once."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import pytest

from everstep.backends.agents.client.link import REQUEST_S, Link, NoAnswer
from everstep.backends.kubernetes import credentials
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.pods import KubernetesPods, PodLink
from everstep.backends.kubernetes.watch import ClusterWatch
from everstep.protocol import wire


@dataclass
class StubLink(Link):
    """Answers with its number."""

    number: int
    is_closed: bool = False

    async def request(
        self, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        del method, path, body, within_s
        return {"link": self.number}

    def close(self) -> None:
        self.is_closed = True


class Maker:
    """Makes links, as late as a test wants."""

    def __init__(self) -> None:
        self.made: list[StubLink] = []
        self.may_make = asyncio.Event()

    async def __call__(self) -> StubLink:
        await self.may_make.wait()
        self.made.append(StubLink(len(self.made)))
        return self.made[-1]


async def test_requests_at_once_use_one_link() -> None:
    """A second one would keep a connection that nothing closes."""
    make = Maker()
    link = PodLink(make)
    requests = [asyncio.ensure_future(link.request("GET", "/")) for _ in range(2)]
    await asyncio.sleep(0)
    make.may_make.set()
    assert await asyncio.gather(*requests) == [{"link": 0}, {"link": 0}]


async def test_a_link_that_is_closed_before_it_is_made_keeps_nothing() -> None:
    make = Maker()
    link = PodLink(make)
    ask = asyncio.ensure_future(link.request("GET", "/"))
    await asyncio.sleep(0)
    link.close()
    make.may_make.set()
    await ask
    assert make.made[0].is_closed


class SlowSecrets:
    """An API server that answers with the Secret of a run as late as a test wants."""

    def __init__(self, *runs: Mapping[str, str]) -> None:
        self._runs = list(runs)
        self.may_answer = [asyncio.Event() for _ in runs]

    async def get(self, path: str, query: Mapping[str, str] = MappingProxyType({})) -> Json:
        del path, query
        number = len(self.may_answer) - len(self._runs)
        entries = self._runs.pop(0)
        await self.may_answer[number].wait()
        return {"data": {key: b64encode(text.encode()).decode() for key, text in entries.items()}}


class PodsOfOneJob:
    """A watch that has one pod of job `j`: of an earlier run, later of the next one."""

    def pod(self, uid: str) -> Json:
        return {"metadata": {"uid": uid, "annotations": {"everstep.dev/job": "j"}}}

    def address(self, uid: str) -> str:
        del uid
        return "127.0.0.1"

    def has_pods(self, job: str) -> bool:
        return job == "j"


async def test_credentials_that_come_after_their_run_has_ended_are_not_those_of_the_next_run() -> (
    None
):
    first, second = (credentials.make("j") for _ in range(2))
    secrets = SlowSecrets(first, second)
    pods = KubernetesPods(
        cast("KubernetesApi", secrets),
        "default",
        cast("ClusterWatch", PodsOfOneJob()),
        asyncio.Semaphore(1),
    )
    link = cast("PodLink", pods.link("of the first run"))
    late = asyncio.ensure_future(link.make())
    await asyncio.sleep(0)
    pods.forget("j")  # its last pod is gone; the next run has its first one
    secrets.may_answer[0].set()
    await late
    assert "j" not in pods.contexts
    secrets.may_answer[1].set()
    assert (await pods.credentials_of("j"))[wire.TOKEN] == second[wire.TOKEN]
    assert (await pods.credentials_of("j"))[wire.TOKEN] == second[wire.TOKEN]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {wire.TOKEN: "YQ=="},
        {**dict.fromkeys(credentials.make("j"), "YQ=="), wire.TOKEN: "/w=="},
        dict.fromkeys(credentials.make("j"), "YQ=="),
        dict.fromkeys(credentials.make("j"), ""),
        dict.fromkeys(credentials.make("j"), "w6k="),
    ],
    ids=["nothing", "a token alone", "no text", "no certificate", "empty", "no ASCII"],
)
async def test_a_secret_that_others_wrote_is_an_agent_that_does_not_answer(
    data: Mapping[str, str],
) -> None:
    """Its name is in the error: an operator can delete it, and the next pods get another one."""

    class Secrets:
        async def get(self, path: str) -> Json:
            assert path.endswith("everstep-agent-j")
            return {"data": data}

    pods = KubernetesPods(
        cast("KubernetesApi", Secrets()),
        "default",
        cast("ClusterWatch", PodsOfOneJob()),
        asyncio.Semaphore(1),
    )
    with pytest.raises(NoAnswer, match="everstep-agent-j is not as Everstep wrote it"):
        await cast("PodLink", pods.link("u")).make()
