"""The objects of an API server in memory, for a placer alone: no controller, no scheduler and no watch."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from everstep.backends.agents import job_record
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused
from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.backends.kubernetes.books import JobSession
from everstep.backends.kubernetes.identity import CLUSTER
from everstep.backends.kubernetes.manifest import PodSettings
from everstep.backends.kubernetes.placing.placer import PodPlacer
from everstep.backends.kubernetes.settings import KubernetesSettings
from everstep.core.world import JobRef, PlaceOrder
from tests.testbed.kubelet.status import timestamp

NAMESPACE = "jobs"
AGENT = "agent"
BOOKS = "b00c5"
JOB = JobRef(id="train", run="run")
_SLOWNESS = 5
"""Turns of the event loop before a request has its effect: one that fails before that answers at once."""
_QUERY: Mapping[str, str] = {}


class Request(NamedTuple):
    method: str
    path: str
    body: Json


class ObjectsInMemory(KubernetesApi):
    """An API server of one namespace. A deleted object is gone at once."""

    def __init__(self) -> None:
        self._newest_date = ("", 0.0)
        self.objects: dict[str, Json] = {}  # by path
        self.requests: list[Request] = []
        self.under_way = 0
        self.before: Callable[[Request], None] = lambda _request: None
        """Called before a request has its effect; what it raises is the answer."""
        self.after: Callable[[Request], None] = lambda _request: None
        """Called after a request had its effect; what it raises is the answer."""
        self._numbers = itertools.count(1)
        for name in (CLUSTER, AGENT):
            self._put(f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"metadata": {"name": name}})

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] = _QUERY,  # noqa: ARG002  # there is one namespace and one job
        body: Json | None = None,
        *,
        accept: str = "",  # noqa: ARG002  # an answer may have more than that
    ) -> Json:
        request = Request(method, path, body or {})
        self.requests.append(request)
        self.before(request)
        self.under_way += 1
        try:
            for _ in range(_SLOWNESS):
                await asyncio.sleep(0)
            return copy.deepcopy(self._answer(request))
        finally:
            self.under_way -= 1
            self.after(request)

    def _answer(self, request: Request) -> Json:
        path, body = request.path, request.body
        if request.method == "POST":
            name = body["metadata"]["name"]
            if f"{path}/{name}" in self.objects:
                raise refused(409, f'"{name}" already exists', "AlreadyExists")
            return self._put(path, body)
        if request.method == "GET" and path.endswith(("/podgroups", "/configmaps")):
            items = [one for key, one in self.objects.items() if key.startswith(f"{path}/")]
            return {"items": items}
        if path not in self.objects:
            raise refused(404, f"{path} not found", "NotFound")
        if request.method == "DELETE":
            return self.objects.pop(path)
        if request.method == "PATCH":
            return self._put(path.rpartition("/")[0], {**self.objects[path], **body})
        if request.method == "PUT":
            if body["metadata"]["resourceVersion"] != self._version_of(path):
                raise refused(409, "the object has been modified", "Conflict")
            return self._put(path.rpartition("/")[0], body)
        return self.objects[path]

    def _version_of(self, path: str) -> str:
        return str(self.objects[path]["metadata"]["resourceVersion"])

    def _put(self, collection: str, body: Json) -> Json:
        path = f"{collection}/{body['metadata']['name']}"
        number = str(next(self._numbers))
        old = self.objects.get(path, {"metadata": {"uid": f"uid-{number}"}})
        metadata = {
            "creationTimestamp": timestamp(time.time()),
            **body["metadata"],
            "uid": old["metadata"]["uid"],
            "resourceVersion": number,
        }
        self.objects[path] = copy.deepcopy({"data": {}, **body, "metadata": metadata})
        return self.objects[path]

    def of(self, kind: str) -> dict[str, Json]:
        """Objects by name."""
        return {
            path.rpartition("/")[2]: one
            for path, one in self.objects.items()
            if path.split("/")[-2] == kind
        }

    def created(self, kind: str) -> list[str]:
        """The names in the requests for new objects, in their order."""
        return [
            one.body["metadata"]["name"]
            for one in self.requests
            if one.method == "POST" and one.path.endswith(f"/{kind}")
        ]


def refused(status: int, message: str, reason: str = "") -> Refused:
    return Refused(status=status, reason=reason, message=message, retry_after_s=0.0)


def placer_of_a_new_worker(api: KubernetesApi) -> PodPlacer:
    backend = KubernetesBackend(api, KubernetesSettings(namespace=NAMESPACE), BOOKS)
    settings = PodSettings(books=BOOKS, agent=AGENT, namespace=NAMESPACE, has_pod_groups=True)
    return backend._job_namespace(NAMESPACE, settings, {"metadata": {"name": AGENT}}).placer


async def launched(api: KubernetesApi, *, has_secret: bool = False) -> PodPlacer:
    """A placer of a job that has its first generation and no pods."""
    placer = placer_of_a_new_worker(api)
    if has_secret:
        placer.pods.credentials[JOB.id] = {"token": "secret"}

    def give(session: JobSession) -> None:
        session.record, _ = job_record.with_generation(
            session.record, JOB, "launch", above=0, server=""
        )

    await placer.books.transact(JOB.id, give)
    return placer


def order_of(*slots: int) -> PlaceOrder:
    """An order of the first generation."""
    return PlaceOrder(
        job=JOB,
        phase="train",
        generation=1,
        slots=slots,
        recreate=slots,
        image="image",
    )
