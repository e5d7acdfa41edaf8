"""The kubelets of some nodes in one program, over one watch of all pods that are bound to a node."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

from tests.testbed.api import UNREACHABLE, Api, ApiError, Json
from tests.testbed.kubelet.node import Node, NodeSpec

_BOUND = "spec.nodeName!="  # not empty

logger = logging.getLogger(__name__)


class Kubelet:
    """Runs pods of its nodes until it is cancelled."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.nodes: dict[str, Node] = {}
        self._api = api
        self._folder = folder
        self._pods: dict[str, Json] = {}  # of all nodes here, by uid
        self._synchronized = asyncio.Event()

    async def add_node(self, spec: NodeSpec) -> None:
        node = Node(self._api, spec, self._folder / spec.name)
        self.nodes[spec.name] = node
        await node.start()

    async def remove_node(self, name: str) -> None:
        """Take a machine away for good, as an autoscaler does: its processes, then its object."""
        self.nodes.pop(name).crash()
        await self._api.delete(f"/api/v1/nodes/{name}")

    async def resync(self, node: Node) -> None:
        """Hand a node that was away every pod that it should have."""
        await self._synchronized.wait()
        mine = [pod for pod in self._pods.values() if pod["spec"]["nodeName"] == node.name]
        for pod in mine:
            node.pod_changed(pod)
        node.only_pods({pod["metadata"]["uid"] for pod in mine})

    async def run(self) -> None:
        """List and watch, again after every error: a list is cheap for so few pods."""
        while True:
            try:
                version = await self._list()
                async for event in self._api.watch(
                    "/api/v1/pods", fieldSelector=_BOUND, resourceVersion=version
                ):
                    if event["type"] == "ERROR":
                        break
                    self._take(event["type"], event["object"])
            except (ApiError, *UNREACHABLE) as error:
                logger.warning("watch of pods: %s", error)
            await asyncio.sleep(random.uniform(0.05, 0.2))

    async def _list(self) -> str:
        reply = await self._api.get("/api/v1/pods", fieldSelector=_BOUND)
        found = {pod["metadata"]["uid"]: pod for pod in reply["items"]}
        for uid in self._pods.keys() - found.keys():
            self._take("DELETED", self._pods[uid])
        for pod in found.values():
            self._take("MODIFIED", pod)
        self._synchronized.set()
        return str(reply["metadata"]["resourceVersion"])

    def _take(self, kind: str, pod: Json) -> None:
        node = self.nodes.get(pod["spec"]["nodeName"])
        if node is None:
            return
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._pods.pop(uid, None)
            node.pod_removed(uid)
        else:
            self._pods[uid] = pod
            node.pod_changed(pod)
