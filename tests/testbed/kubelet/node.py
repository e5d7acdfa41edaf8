"""One node: its object and lease, its pods, and what can go wrong with it."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.testbed.api import STRATEGIC_MERGE, UNREACHABLE, Api, ApiError, Json
from tests.testbed.kubelet.container import Container
from tests.testbed.kubelet.hollow_agents import HollowAgents
from tests.testbed.kubelet.logs import PORT
from tests.testbed.kubelet.pods import PodWorker
from tests.testbed.kubelet.status import micro_timestamp, node_status, shortage
from tests.testbed.kubelet.volumes import References

LEASE_EVERY_S = 1.0
"""Far below the grace period of the controllers, which is 6 s here."""
_RETRY_S = 0.2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node to be made. `resources` is what it has, as Kubernetes quantities.

    On a hollow node pods are reported as running, and no process is started.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    is_hollow: bool = False
    lease_every_s: float = LEASE_EVERY_S
    resources: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "8", "memory": "32Gi", "pods": "110"}
    )


class Node:
    """A node and the kubelet on it. It may stop and come back; its folder stays."""

    def __init__(
        self,
        api: Api,
        spec: NodeSpec,
        folder: Path,
        hollow_agents: HollowAgents,
        references: References,
    ) -> None:
        self.api = api
        self.references = references
        self.hollow_agents = hollow_agents
        self.spec = spec
        self.ip = _free_address()
        self.connected = asyncio.Event()
        self.keeps_lease = True
        self.start_delay_s = 0.0
        self.pods_may_begin = asyncio.Event()
        self.pods_may_begin.set()
        self.is_hollow = spec.is_hollow
        self._folder = folder
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._uid = ""
        self._is_running = False

    @property
    def name(self) -> str:
        return self.spec.name

    # What the kubelet on it does.

    async def start(self) -> None:
        """Start the kubelet: register the node, say that it is ready, keep its lease."""
        self._is_running = True
        self.connected.set()
        await self._register()
        self._spawn(self._keep_lease())

    def stop_kubelet(self) -> None:
        """The kubelet dies and forgets everything. What it started lives on."""
        self._is_running = False
        self.connected.clear()
        for task in self._tasks:
            task.cancel()
        self._workers.clear()

    def crash(self) -> None:
        """The machine loses power."""
        workers = list(self._workers.values())
        self.stop_kubelet()  # first: it must not report what comes now
        for worker in workers:
            worker.kill_containers()

    async def come_back(self) -> None:
        """Power, kubelet and network are there again, whatever of it was missing."""
        self.connected.set()
        self.keeps_lease = True
        if self._is_running:
            await self.post_status()
        else:
            await self.start()

    async def is_sound(self) -> bool:
        """Whether no fault is left of it, in the kubelet or in its object."""
        runs = self._is_running and self.connected.is_set() and self.keeps_lease
        if not runs or self.start_delay_s or not self.pods_may_begin.is_set():
            return False
        try:
            obj = await self.api.get(f"/api/v1/nodes/{self.name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        kinds = {one["type"] for one in obj["status"]["conditions"]}
        expected = node_status(self.name, resources={}, ip=self.ip, port=PORT, now=0.0)[
            "conditions"
        ]
        spoiled = obj["spec"].keys() & {"taints", "unschedulable"}
        return _is_ready(obj) and not spoiled and kinds == {one["type"] for one in expected}

    def worker(self, namespace: str, pod: str) -> PodWorker | None:
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, pod):
                return worker
        return None

    def object_changed(self, node: Json) -> None:
        """A lease alone never makes a node ready again once a controller has called it unknown."""
        if self._is_running and self.connected.is_set() and not _is_ready(node):
            self._spawn(self.post_status())

    def pod_changed(self, pod: Json) -> None:
        """The API server has a pod for this node, or a newer state of one."""
        if not (self._is_running and self.connected.is_set()):
            return
        uid = pod["metadata"]["uid"]
        if worker := self._workers.get(uid):
            was_ready, is_ready = _is_ready(worker.pod), _is_ready(pod)
            worker.update(pod)
            if was_ready and not is_ready:
                self._spawn(worker.report_again())
            return
        running = [worker.pod for worker in self._workers.values() if not worker.is_over]
        lacking = shortage(pod, running, resources=self.spec.resources)
        refuse = None
        if lacking and not (self._folder / uid).exists():
            refuse = (
                f"OutOf{lacking}",
                f"Pod was rejected: Node didn't have enough resource: {lacking}",
            )
        ip = pod.get("status", {}).get("podIP") or _free_address()
        worker = PodWorker(self, pod, folder=self._folder / uid, ip=ip)
        self._workers[uid] = worker
        self._spawn(self._run_pod(uid, worker, refuse))

    def pod_removed(self, uid: str) -> None:
        """The API server has no such pod any longer."""
        if self._is_running and self.connected.is_set() and (worker := self._workers.get(uid)):
            worker.object_removed()

    def only_pods(self, uids: set[str]) -> None:
        """Every pod of this node that exists; what runs for others is ended."""
        if not (self._is_running and self.connected.is_set()):
            return
        for uid in self._workers.keys() - uids:
            self.pod_removed(uid)
        for path in self._folder.glob("*"):
            if path.name not in uids and path.name not in self._workers:
                self._spawn(_end_leftover(path))

    async def _run_pod(self, uid: str, worker: PodWorker, refuse: tuple[str, str] | None) -> None:
        await worker.run(refuse=refuse)
        self._workers.pop(uid, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a task of node %s ended", self.name, exc_info=error)

    # What it says of itself.

    async def _register(self) -> None:
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **self.spec.labels,
        }
        try:
            node = await self.api.create(
                "/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}}
            )
        except ApiError as error:
            if error.status != 409:
                raise
            node = await self.api.get(f"/api/v1/nodes/{self.name}")
        self._uid = node["metadata"]["uid"]
        await self.post_status()

    async def post_status(self) -> None:
        now = time.time()
        status = node_status(
            self.name, resources=self.spec.resources, ip=self.ip, port=PORT, now=now
        )
        await self.api.patch(
            f"/api/v1/nodes/{self.name}/status", {"status": status}, kind=STRATEGIC_MERGE
        )

    async def _keep_lease(self) -> None:
        while True:
            await self.connected.wait()
            try:
                await (self._renew_lease() if self.keeps_lease else self.post_status())
            except (ApiError, *UNREACHABLE) as error:
                logger.warning("lease of node %s: %s", self.name, error)
            await asyncio.sleep(self.spec.lease_every_s)

    async def _renew_lease(self) -> None:
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": 40,
            "renewTime": micro_timestamp(time.time()),
        }
        try:
            await self.api.patch(f"{leases}/{self.name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid}
            metadata = {"name": self.name, "ownerReferences": [owner]}
            await self.api.create(leases, {"metadata": metadata, "spec": spec})


async def _end_leftover(folder: Path) -> None:
    """End what an earlier kubelet started for a pod that is gone."""
    for path in folder.glob("containers/*/*"):
        if (container := Container.adopt(path)) and container.is_running:
            container.kill()
            await container.ended()
    shutil.rmtree(folder, ignore_errors=True)


def _is_ready(obj: Json) -> bool:
    """Whether this node or pod is ready."""
    conditions = obj.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _free_address() -> str:
    """A loopback address. They are many: two pods of this machine hardly ever get the same one."""
    number = random.randrange(1 << 22)  # 127.64.0.0/10
    return f"127.{64 + (number >> 16)}.{(number >> 8) & 255}.{1 + number % 254}"
