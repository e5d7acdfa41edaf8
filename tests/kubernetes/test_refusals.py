"""Answers of an API server, or of a proxy before it, and what is made of them. No cluster is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.config import ConfigException

from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable, _decode
from everstep.backends.kubernetes.placing.placer import PodPlacer
from everstep.core.errors import BackendUnavailable, InvalidSpec


class Refusing:
    """An API server with one answer to each request to create something."""

    def __init__(self, status: int, message: str) -> None:
        self.answer = Refused(status=status, reason="", message=message, retry_after_s=0.0)

    async def create(self, *_: Any) -> Any:
        raise self.answer


def placer(api: Any) -> PodPlacer:
    unused: Any = None
    parts = ("books", "watch", "pods", "agents", "settings", "groups", "withdrawals", "reconciler")
    others = dict.fromkeys((*parts, "queues", "agent"), unused)
    return PodPlacer(api=api, namespace="jobs", home="jobs", **others)


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


@pytest.mark.parametrize(("status", "message"), UNAVAILABLE)
async def test_a_pod_that_nothing_is_said_of_is_tried_again(status: int, message: str) -> None:
    with pytest.raises(BackendUnavailable):
        await placer(Refusing(status, message))._create_one({})


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"[1]", b"7", b"<html>"])
def test_an_answer_that_is_no_object_is_one_of_a_proxy(text: bytes) -> None:
    with pytest.raises(Unreachable, match="the answer is no JSON object"):
        _decode(text, "/version")


async def test_an_error_without_words_names_the_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: Any, **__: Any) -> None:
        raise ConfigException("")

    monkeypatch.setattr("everstep.backends.kubernetes.api.load_kube_config", refuses)
    with pytest.raises(ConfigException, match="config: no kubeconfig"):
        await KubernetesApi.from_kubeconfig(str(tmp_path / "config"))
