"""Pods as tests write them, and waiting for what the API server says of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.support.patience import HUNG_S
from tests.testbed.api import Api, Json


def shell_pod(name: str, script: str = "exec sleep 1000", /, **spec: Any) -> Json:
    """A pod of one container, `main`, that runs a shell script. `spec` is more of the pod's spec."""
    container = {"name": "main", "image": "machine", "command": ["sh", "-c", script]}
    container |= spec.pop("main", {})
    return {
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }


class Pods:
    """The pods of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    async def create(self, name: str, script: str = "exec sleep 1000", /, **spec: Any) -> Json:
        return await self.api.create(self.path, shell_pod(name, script, **spec))

    async def get(self, name: str) -> Json:
        return await self.api.get(f"{self.path}/{name}")

    async def delete(self, name: str, **options: object) -> None:
        await self.api.delete(f"{self.path}/{name}", **options)

    async def until(self, name: str, claim: Callable[[Json], object]) -> Json:
        """The pod, once the claim holds."""
        pod: Json = {}
        try:
            async with asyncio.timeout(HUNG_S):
                while True:
                    pod = await self.get(name)
                    if claim(pod):
                        return pod
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"did not come to be: {pod['status']}") from None

    async def until_phase(self, name: str, phase: str) -> Json:
        return await self.until(name, lambda pod: pod["status"].get("phase") == phase)

    async def until_gone(self, name: str) -> None:
        async with asyncio.timeout(HUNG_S):
            while name in {
                pod["metadata"]["name"] for pod in (await self.api.get(self.path))["items"]
            }:
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def made(api: Api, collection: str, body: Json) -> AsyncIterator[str]:
    """The path of a new object, which is deleted also when a test fails with it."""
    await api.create(collection, body)
    path = f"{collection}/{body['metadata']['name']}"
    try:
        yield path
    finally:
        await api.delete(path)


_OF_JOBS = (
    ("/api/v1", "pods"),
    ("/api/v1", "secrets"),
    ("/api/v1", "configmaps"),
    ("/apis/scheduling.k8s.io/v1beta1", "podgroups"),
)


async def delete_jobs(api: Api, namespace: str) -> None:
    """Delete every pod, all that there is of jobs, and the marks of isolated nodes."""
    core = f"/api/v1/namespaces/{namespace}"
    await api.delete_all(f"{core}/pods", gracePeriodSeconds="0")
    for group, kind in _OF_JOBS:
        path = f"{group}/namespaces/{namespace}/{kind}"
        await api.delete_all(path, labelSelector="everstep.dev/job")
    books = "metadata.name=everstep-books"
    for one in (await api.get(f"{core}/configmaps", fieldSelector=books))["items"]:
        if marks := [key for key in one["data"] if key.startswith("isolated.")]:
            path = f"{core}/configmaps/everstep-books"
            await api.patch(path, {"data": dict.fromkeys(marks)})


async def objects_of(api: Api, namespace: str, job: str) -> set[str]:
    """Kinds and names of what is there of a job."""
    names = set()
    for group, kind in _OF_JOBS:
        path = f"{group}/namespaces/{namespace}/{kind}"
        items = (await api.get(path, labelSelector=f"everstep.dev/job={job}"))["items"]
        names |= {f"{kind}/{one['metadata']['name']}" for one in items}
    return names


def ending(pod: Json, container: str = "main") -> Json:
    """How a container ended: `exitCode`, `reason` and so on."""
    return dict(_state(pod, container)["terminated"])


def waiting(pod: Json, container: str = "main") -> Json:
    """Why a container does not run yet; empty if it does, or did."""
    return dict(_state(pod, container).get("waiting", {}))


def _state(pod: Json, container: str) -> Json:
    status = pod["status"]
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if one["name"] == container:
            return dict(one["state"])
    return {}


def condition(obj: Json, kind: str) -> Json:
    """The condition of that type of a pod or a node, empty if there is none."""
    conditions = obj.get("status", {}).get("conditions", ())
    return next((dict(one) for one in conditions if one["type"] == kind), {})


def taints(node: Json) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints", ())}


def is_ready(node: Json) -> bool:
    return bool(condition(node, "Ready").get("status") == "True")


def takes_pods(node: Json) -> bool:
    """Whether pods land on the node: a controller removes its taint only after it is ready."""
    return is_ready(node) and not taints(node)


async def until_node(api: Api, name: str, claim: Callable[[Json], object]) -> Json:
    """The node, once the claim holds."""
    node: Json = {}
    try:
        async with asyncio.timeout(HUNG_S):
            while True:
                node = await api.get(f"/api/v1/nodes/{name}")
                if claim(node):
                    return node
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"did not come to be: {node}") from None


async def until(
    claim: Callable[[], object | Awaitable[object]], *, within_s: float = HUNG_S
) -> None:
    """Wait until the claim holds."""
    async with asyncio.timeout(within_s):
        while True:
            holds = claim()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(0.02)


def processes_with(word: str) -> set[int]:
    """Processes of this machine that have this word in their command line."""
    pids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if word.encode() in words:
                pids.add(int(entry.name))
    return pids
