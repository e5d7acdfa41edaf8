"""The kubelets of some nodes in one program, over one watch of all pods that are bound to a node."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.testbed.api import UNREACHABLE, Api, ApiError, Json
from tests.testbed.kubelet.hollow_agents import HollowAgents
from tests.testbed.kubelet.logs import LogServer
from tests.testbed.kubelet.node import Node, NodeSpec
from tests.testbed.kubelet.pods import PodWorker
from tests.testbed.kubelet.volumes import References

TakeEvent = Callable[[str, Json], None]
"""Kind of a watch event, and the object."""

_BOUND = "spec.nodeName!="  # not empty

logger = logging.getLogger(__name__)


class Kubelet:
    """Runs pods of its nodes until it is cancelled."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.nodes: dict[str, Node] = {}
        self._api = api
        self._folder = folder
        self._pods: dict[str, Json] = {}  # that are bound to any node, by uid
        self._synchronized = asyncio.Event()
        self._logs = LogServer(self._find_worker, folder.parent)
        self._hollow_agents = HollowAgents()
        self._references = References(api, keeps_immutable=True)  # of all hollow nodes

    async def start(self) -> None:
        await self._logs.start()
        await self._hollow_agents.start()

    async def add_node(self, spec: NodeSpec) -> None:
        folder = self._folder / spec.name
        references = self._references if spec.is_hollow else References(self._api)
        node = Node(self._api, spec, folder, self._hollow_agents, references)
        self.nodes[spec.name] = node
        if not spec.is_hollow:  # it has no logs
            await self._logs.listen(node.ip)
        await node.start()

    async def remove_node(self, name: str) -> None:
        """Take a machine away for good, as an autoscaler does: its processes, then its object."""
        self.nodes.pop(name).crash()
        try:
            await self._api.delete(f"/api/v1/nodes/{name}")
        except ApiError as error:
            if error.status != 404:
                raise

    async def restore(self, specs: Sequence[NodeSpec]) -> None:
        """Have these nodes as they are when they are added, and no others. Repeatable."""
        for name in self.nodes.keys() - {spec.name for spec in specs}:
            await self.remove_node(name)
        for spec in specs:
            node = self.nodes.get(spec.name)
            if node is not None and await node.is_sound():
                continue
            if node is not None:
                await self.remove_node(spec.name)
            await self.add_node(spec)
            await self.resync(self.nodes[spec.name])  # ends what an earlier kubelet left running

    async def resync(self, node: Node) -> None:
        """Hand a node that was away every pod that it should have."""
        await self._synchronized.wait()
        pods = [pod for pod in self._pods.values() if pod["spec"]["nodeName"] == node.name]
        for pod in pods:
            node.pod_changed(pod)
        node.only_pods({pod["metadata"]["uid"] for pod in pods})

    async def run(self) -> None:
        await asyncio.gather(
            self._follow("/api/v1/pods", self._pods, self._pod_event, fieldSelector=_BOUND),
            self._follow("/api/v1/nodes", {}, self._node_event),
        )

    async def _follow(
        self, path: str, objects: dict[str, Json], take: TakeEvent, **params: str
    ) -> None:
        """List and watch, again after every error: a list is cheap for so few objects."""
        while True:
            try:
                reply = await self._api.get(path, **params)
                listed = {one["metadata"]["uid"]: one for one in reply["items"]}
                for uid in objects.keys() - listed.keys():
                    take("DELETED", objects.pop(uid))
                for uid, one in listed.items():
                    objects[uid] = one
                    take("MODIFIED", one)
                if objects is self._pods:
                    self._synchronized.set()
                version = reply["metadata"]["resourceVersion"]
                async for event in self._api.watch(path, resourceVersion=version, **params):
                    if event["type"] == "ERROR":
                        break
                    uid = event["object"]["metadata"]["uid"]
                    objects[uid] = event["object"]
                    if event["type"] == "DELETED":
                        del objects[uid]
                    take(event["type"], event["object"])
            except (ApiError, *UNREACHABLE) as error:
                logger.warning("watch of %s: %s", path, error)
            await asyncio.sleep(random.uniform(0.05, 0.2))

    def _find_worker(self, address: str, namespace: str, pod: str) -> PodWorker | None:
        for node in self.nodes.values():
            if node.ip == address and node.connected.is_set():
                return node.worker(namespace, pod)
        return None

    def _pod_event(self, kind: str, pod: Json) -> None:
        node = self.nodes.get(pod["spec"]["nodeName"])
        if node is None:
            return
        if kind == "DELETED":
            node.pod_removed(pod["metadata"]["uid"])
        else:
            node.pod_changed(pod)

    def _node_event(self, kind: str, obj: Json) -> None:
        node = self.nodes.get(obj["metadata"]["name"])
        if node is not None and kind != "DELETED":
            node.object_changed(obj)
