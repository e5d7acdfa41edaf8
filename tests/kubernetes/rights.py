"""The rights of a worker as deploy/kubernetes grants them, for one namespace of the test cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.backends.kubernetes import gangs
from everstep.backends.kubernetes.api import KubernetesApi
from tests.support.patience import HUNG_S
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.shared import ROOT

MANIFEST = ROOT / "deploy" / "kubernetes" / "rbac.yaml"
"""The rights in the workers' own namespace, and in the whole cluster."""
OF_JOBS = ROOT / "deploy" / "job-namespace" / "rbac.yaml"
"""The rights in a namespace of jobs. Most tests have jobs in that of the workers, with both."""
BOTH = (MANIFEST, OF_JOBS)
NAMESPACE = "-NAMESPACE"
"""At the end of the name of an object that belongs to no namespace."""
DEVICE_INFO = MANIFEST.with_name("device-info.yaml")
ACCOUNT = "everstep-worker"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding"}
_OF_THE_CLUSTER = {"nodes", "leases"}  # read of all namespaces
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def manifest(*paths: Path) -> list[Json]:
    return [dict(one) for path in paths for one in yaml.safe_load_all(path.read_text())]


def granted(*paths: Path) -> set[tuple[str, str]]:
    """Resource and verb of every right; by default of workers that have jobs in their own namespace."""
    rules = [rule for one in manifest(*(paths or BOTH)) for rule in one.get("rules", ())]
    return {(name, verb) for rule in rules for name in rule["resources"] for verb in rule["verbs"]}


def recorded(monkeypatch: pytest.MonkeyPatch, *, below: str = "/") -> set[tuple[str, str]]:
    """The rights that requests of workers need from now on, for paths with this part."""
    used: set[tuple[str, str]] = set()
    send = KubernetesApi._response

    def response(
        self: KubernetesApi,
        path: str,
        query: Mapping[str, str],
        *,
        method: str = "GET",
        **rest: Any,
    ) -> AbstractAsyncContextManager[Any]:
        if path != gangs.API and below in path:  # what an API server has, every user may read
            used.add(_right(method, path, query))
        return send(self, path, query, method=method, **rest)

    monkeypatch.setattr(KubernetesApi, "_response", response)
    return used


def _right(method: str, path: str, query: Mapping[str, str]) -> tuple[str, str]:
    """The resource and verb that the API server checks for a request."""
    groups = 2 if path.startswith("/api/") else 3  # /api/v1 or /apis/GROUP/VERSION
    parts = path.strip("/").split("/")[groups:]
    resource, *name = parts[2:] if parts[0] == "namespaces" else parts
    if method != "GET":
        return resource, _VERBS[method]
    return resource, "watch" if "watch" in query else "get" if name else "list"


async def grant(api: Api, namespace: str, *paths: Path) -> None:
    """Create what the manifests have; what belongs to no namespace is called after this one."""
    await _create_rights(api, namespace, [*_manifest_for(namespace, *paths)])


async def _create_rights(
    api: Api, namespace: str, bodies: Sequence[Json], *, workers_in: str = ""
) -> None:
    """Create these objects, and return once the API server goes by them: a moment after it stored them."""
    for body in bodies:
        await api.create(_collection(body["kind"], namespace), body)
    async with asyncio.timeout(HUNG_S):
        for rule in (body["rules"][0] for body in bodies if "rules" in body):
            resource, verb = rule["resources"][0], rule["verbs"][0]
            while not await is_allowed(api, namespace, resource, verb, workers_in=workers_in):
                await asyncio.sleep(0.02)


async def grant_all_but(
    api: Api, namespace: str, left_out: tuple[str, str] | None, *, workers_in: str = ""
) -> None:
    """Replace the rules of all roles by those of the manifest without one right: resource and verb.

    `workers_in`: the namespace is one that documents may name, and its workers are in that one.
    """
    for body in _of_jobs(workers_in) if workers_in else _manifest_for(namespace):
        rules = [_without(rule, left_out) for rule in body.get("rules", ())]
        if rules:
            path = f"{_collection(body['kind'], namespace)}/{body['metadata']['name']}"
            await api.patch(path, {"rules": [rule for rule in rules if rule["verbs"]]})


async def is_allowed(
    api: Api, namespace: str, resource: str, verb: str, *, workers_in: str = ""
) -> bool:
    """Whether the API server would let a worker do that. `workers_in` as above."""
    groups = [
        rule["apiGroups"]
        for one in manifest(*((OF_JOBS,) if workers_in else BOTH))
        for rule in one.get("rules", ())
        if resource in rule["resources"]
    ]
    attributes = {"group": groups[0][0], "resource": resource, "verb": verb}
    if resource not in _OF_THE_CLUSTER:
        attributes["namespace"] = namespace
    user = f"system:serviceaccount:{workers_in or namespace}:{ACCOUNT}"
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    reply = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(reply["status"]["allowed"])


def _manifest_for(namespace: str, *paths: Path) -> Iterator[Json]:
    for body in manifest(*(paths or BOTH)):
        for reference in (body["metadata"], body.get("roleRef", {"name": ""})):
            reference["name"] = reference["name"].replace(NAMESPACE, f"-{namespace}")
        for subject in body.get("subjects", ()):
            subject["namespace"] = namespace
        yield body


def _without(rule: Json, left_out: tuple[str, str] | None) -> Json:
    verbs = [
        verb
        for verb in rule["verbs"]
        if not any((resource, verb) == left_out for resource in rule["resources"])
    ]
    return {**rule, "verbs": verbs}


async def grant_for_jobs(api: Api, namespace: str, *, workers_in: str) -> None:
    """Let the workers of one namespace make pods in another one."""
    await _create_rights(api, namespace, [*_of_jobs(workers_in)], workers_in=workers_in)


def _of_jobs(workers_in: str) -> Iterator[Json]:
    for body in manifest(OF_JOBS):
        for subject in body.get("subjects", ()):
            subject["namespace"] = workers_in
        yield body


async def kubeconfig(cluster: ClusterAccess, api: Api, namespace: str, path: Path) -> str:
    """A file that gives a worker the token of its service account alone."""
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
    reply = await api.create(account, {"spec": {"expirationSeconds": 7200}})
    content = json.loads(Path(cluster.kubeconfig).read_text())
    (user,) = content["users"]
    user["user"] = {"token": reply["status"]["token"]}
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
    return str(path)


@asynccontextmanager
async def of_workers(
    cluster: ClusterAccess, api: Api, namespace: str, path: Path, *manifests: Path
) -> AsyncIterator[str]:
    """The kubeconfig, at this path, of workers with these rights in this namespace; by default with all."""
    await grant(api, namespace, *manifests)
    try:
        yield await kubeconfig(cluster, api, namespace, path)
    finally:
        await _revoke_cluster_wide(api, namespace)


async def _revoke_cluster_wide(api: Api, namespace: str) -> None:
    for body in _manifest_for(namespace, MANIFEST):
        if body["kind"] in _CLUSTER_WIDE:
            try:
                path = f"{_collection(body['kind'], namespace)}/{body['metadata']['name']}"
                await api.delete(path)
            except ApiError as error:
                if error.status != 404:
                    raise


@asynccontextmanager
async def to_read_device_info(api: Api, namespace: str) -> AsyncIterator[None]:
    """The right of device-info.yaml for the workers of this namespace, beside those of other test files."""
    rbac = f"{_RBAC}/namespaces/kube-system"
    role, binding = (dict(one) for one in yaml.safe_load_all(DEVICE_INFO.read_text()))
    role["metadata"]["name"] += f"-{namespace}"
    binding["metadata"]["name"] += f"-{namespace}"
    binding["roleRef"]["name"] += f"-{namespace}"
    binding["subjects"][0]["namespace"] = namespace
    await api.create(f"{rbac}/roles", role)
    await api.create(f"{rbac}/rolebindings", binding)
    try:
        yield
    finally:
        await api.delete(f"{rbac}/rolebindings/{binding['metadata']['name']}")
        await api.delete(f"{rbac}/roles/{role['metadata']['name']}")


def _collection(kind: str, namespace: str) -> str:
    if kind == "ServiceAccount":
        return f"/api/v1/namespaces/{namespace}/serviceaccounts"
    if kind in _CLUSTER_WIDE:
        return f"{_RBAC}/{kind.lower()}s"
    return f"{_RBAC}/namespaces/{namespace}/{kind.lower()}s"
