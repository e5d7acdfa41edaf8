"""The nodes of a cluster as people and the engine see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused
from everstep.backends.kubernetes.books import isolated_nodes
from everstep.backends.kubernetes.node_facts import faults_of, node_service
from everstep.backends.kubernetes.watch import job_of
from everstep.core.world import DeviceView, NodeView


async def nodes(
    api: KubernetesApi, namespaces: Sequence[str], plugins: Mapping[str, str]
) -> tuple[NodeView, ...]:
    """All nodes, with the jobs of these namespaces on each; the first one is that of the workers.

    Raises Refused, Unreachable.
    """
    items = (await api.get("/api/v1/nodes"))["items"]
    query = {"labelSelector": f"{names.MANAGED_BY}={names.EVERSTEP}"}
    jobs: dict[str, set[str]] = {}
    for namespace in namespaces:
        pods = await api.get(f"/api/v1/namespaces/{namespace}/pods", query)
        for pod in pods["items"]:
            jobs.setdefault(pod["spec"].get("nodeName", ""), set()).add(job_of(pod))
    try:
        isolated = await isolated_nodes(api, namespaces[0])
    except Refused as error:
        if error.status != 404:  # no worker was ever here
            raise
        isolated = {}
    ordered = sorted(items, key=lambda node: str(node["metadata"]["name"]))
    return tuple(node_view(node, isolated, jobs, plugins) for node in ordered)


def node_view(
    node: Json,
    isolated: Mapping[str, str],
    jobs: Mapping[str, set[str]],
    plugins: Mapping[str, str],
) -> NodeView:
    name = node["metadata"]["name"]
    service, _ = node_service(node)
    fault = next(faults_of(node, now=0.0), None)
    resources = node.get("status", {}).get("allocatable", {})
    kind = next((k for k, resource in plugins.items() if resource in resources), None)
    count = int(resources[plugins[kind]]) if kind is not None else 0
    return NodeView(
        name=name,
        ready=service == "ready",
        isolated=name in isolated,
        reason=isolated.get(name, "" if fault is None else fault.message),
        devices=tuple(DeviceView(index=index) for index in range(count)),
        jobs=tuple(sorted(jobs.get(name, ()))),
        accelerator="nvidia" if kind == "nvidia" else "ascend" if kind == "ascend" else "none",
    )
