"""Faults of nodes and pods by name. What a reporter in a real cluster writes is written in its form."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.testbed.api import JSON_PATCH, STRATEGIC_MERGE, ApiError
from tests.testbed.kubelet.kubelet import Kubelet
from tests.testbed.kubelet.node import Node
from tests.testbed.kubelet.pods import PodWorker
from tests.testbed.kubelet.status import condition

Fault = Callable[..., Awaitable[None]]


class UnknownFault(Exception):
    """No fault, node or pod of that name."""


async def node_crash(kubelet: Kubelet, node: str) -> None:
    """The machine loses power: every process is gone at once, and nothing is reported."""
    _node(kubelet, node).crash()


async def kubelet_death(kubelet: Kubelet, node: str) -> None:
    """The kubelet dies, its pods' processes live on: the node falls silent and cannot end them."""
    _node(kubelet, node).stop_kubelet()


async def lease_stop(kubelet: Kubelet, node: str) -> None:
    """The kubelet renews its lease no longer. It reports its status: the node is not called not ready."""
    _node(kubelet, node).keeps_lease = False


async def partition(kubelet: Kubelet, node: str) -> None:
    """The node does not reach the API server. Its kubelet and its processes go on."""
    _node(kubelet, node).connected.clear()


async def node_return(kubelet: Kubelet, node: str) -> None:
    """Power, kubelet or network is back. The kubelet finds what still runs and what was deleted meanwhile."""
    one = _node(kubelet, node)
    await one.come_back()
    await kubelet.resync(one)


async def container_kill(
    kubelet: Kubelet, namespace: str, pod: str, container: str | None = None
) -> None:
    """SIGKILL to the first process of a container, or of all containers of a pod."""
    _worker(kubelet, namespace, pod).kill_containers(container)


async def out_of_memory(kubelet: Kubelet, namespace: str, pod: str, container: str) -> None:
    """The kernel ends a container that uses more memory than its limit."""
    _worker(kubelet, namespace, pod).kill_for_memory(container)


async def node_pressure(
    kubelet: Kubelet, namespace: str, pod: str, *, reason: str = "Evicted", message: str = ""
) -> None:
    """The node ends a pod: it is low on a resource, shuts down, or has to run a critical pod."""
    why = message or "The node was low on resource: memory."
    _worker(kubelet, namespace, pod).evict(reason, why)


async def slow_node(kubelet: Kubelet, node: str, seconds: float) -> None:
    """Each pod that comes to the node from now on waits so long before its first container."""
    _node(kubelet, node).start_delay_s = seconds


async def hold_pods(kubelet: Kubelet, node: str, held: bool) -> None:
    """No container of a pod that comes to the node begins until that is over."""
    may_begin = _node(kubelet, node).pods_may_begin
    may_begin.clear() if held else may_begin.set()


async def node_condition(
    kubelet: Kubelet, node: str, *, kind: str, holds: bool, reason: str = "", message: str = ""
) -> None:
    """A condition beside the kubelet's own, as node-problem-detector and device monitors write it."""
    one = _node(kubelet, node)
    body = condition(kind, holds=holds, reason=reason, message=message, at=time.time())
    await one.api.patch(
        f"/api/v1/nodes/{node}/status", {"status": {"conditions": [body]}}, kind=STRATEGIC_MERGE
    )


async def node_taint(kubelet: Kubelet, node: str, key: str, effect: str, value: str = "") -> None:
    """A taint as a device monitor sets it; with the effect "" it is removed."""
    one = _node(kubelet, node)
    while True:
        obj = await one.api.get(f"/api/v1/nodes/{node}")
        taints = [taint for taint in obj["spec"].get("taints", ()) if taint["key"] != key]
        if effect:
            taints.append({"key": key, "value": value, "effect": effect})
        body = [
            {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": obj["metadata"]["resourceVersion"],
            },
            {"op": "add", "path": "/spec/taints", "value": taints},
        ]
        try:
            await one.api.patch(f"/api/v1/nodes/{node}", body, kind=JSON_PATCH)
            return
        except ApiError as error:
            # The list of taints has no owner per entry: another writer came first.
            if error.status not in {409, 422}:
                raise


async def device_count(kubelet: Kubelet, node: str, resource: str, count: int) -> None:
    """How many devices of a kind pods may have, as a device plugin reports it: without the broken ones."""
    one = _node(kubelet, node)
    status = {"allocatable": {resource: str(count)}}
    await one.api.patch(f"/api/v1/nodes/{node}/status", {"status": status}, kind=STRATEGIC_MERGE)


async def device_config_map(kubelet: Kubelet, node: str, device_info: Mapping[str, Any]) -> None:
    """The ConfigMap in which the device plugin of MindCluster reports the faults of a node."""
    one = _node(kubelet, node)
    name = f"mindx-dl-deviceinfo-{node}"
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"mx-consumer-cim": "true"}},
        "data": {"DeviceInfoCfg": json.dumps(device_info)},
    }
    try:
        await one.api.create("/api/v1/namespaces/kube-system/configmaps", body)
    except ApiError as error:
        if error.status != 409:
            raise
        await one.api.patch(
            f"/api/v1/namespaces/kube-system/configmaps/{name}", {"data": body["data"]}
        )


FAULTS: Mapping[str, Fault] = {
    "node-crash": node_crash,
    "kubelet-death": kubelet_death,
    "lease-stop": lease_stop,
    "partition": partition,
    "node-return": node_return,
    "container-kill": container_kill,
    "out-of-memory": out_of_memory,
    "node-pressure": node_pressure,
    "slow-node": slow_node,
    "hold-pods": hold_pods,
    "node-condition": node_condition,
    "node-taint": node_taint,
    "device-count": device_count,
    "device-config-map": device_config_map,
}


def _worker(kubelet: Kubelet, namespace: str, pod: str) -> PodWorker:
    workers = (node.worker(namespace, pod) for node in kubelet.nodes.values())
    if worker := next((one for one in workers if one is not None), None):
        return worker
    raise UnknownFault(f"no pod {namespace}/{pod} on a node of this kubelet")


def _node(kubelet: Kubelet, name: str) -> Node:
    if name not in kubelet.nodes:
        raise UnknownFault(f"no node {name}; there are {', '.join(kubelet.nodes)}")
    return kubelet.nodes[name]
