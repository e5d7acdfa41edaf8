"""The nodes of a cluster as people and the engine see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused
from everstep.backends.kubernetes.books import isolations
from everstep.backends.kubernetes.node_facts import faults_of, maintenance, node_service
from everstep.backends.kubernetes.pod_facts import has_ended
from everstep.backends.kubernetes.watch import job_of
from everstep.backends.rules.nodes import Health, devices_by_node
from everstep.core.world import DeviceView, NodeView


async def nodes(
    api: KubernetesApi, home: str, namespaces: Sequence[str], plugins: Mapping[str, str]
) -> tuple[NodeView, ...]:
    """All nodes, with the jobs of these namespaces on each, and those that the workers at home isolated.

    Raises Refused, Unreachable.
    """
    items = (await api.get("/api/v1/nodes"))["items"]
    query = {"labelSelector": f"{names.MANAGED_BY}={names.EVERSTEP}"}
    jobs: dict[str, set[str]] = {}
    used: Counter[str] = Counter()
    for namespace in namespaces:
        pods = await api.get(f"/api/v1/namespaces/{namespace}/pods", query)
        for pod in pods["items"]:
            node = pod["spec"].get("nodeName", "")
            jobs.setdefault(node, set()).add(job_of(pod))
            used[node] += 0 if has_ended(pod) else _devices_of(pod, plugins)
    try:
        isolated = await isolations(api, home)
    except Refused as error:
        if error.status != 404:  # no worker was ever here
            raise
        isolated = {}
    ordered = sorted(items, key=lambda node: str(node["metadata"]["name"]))
    views = (node_view(node, isolated, jobs, plugins) for node in ordered)
    return tuple(replace(view, devices_used=used[view.name]) for view in views)


def _devices_of(pod: Json, plugins: Mapping[str, str]) -> int:
    """How many devices the pod has."""
    limits = [one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]]
    return sum(int(each.get(resource, 0)) for each in limits for resource in plugins.values())


def node_view(
    node: Json,
    isolated: Mapping[str, str],
    jobs: Mapping[str, set[str]],
    plugins: Mapping[str, str],
    codes: Mapping[int, tuple[str, ...]] | None = None,
) -> NodeView:
    """A node that is kept free for an isolated device of it has no room for a pod, and no device to give.

    `codes`: all that its devices show now; None: unknown.
    """
    name = node["metadata"]["name"]
    service, _ = node_service(node)
    fault = next(faults_of(node, now=0.0), None)
    resources = node.get("status", {}).get("allocatable", {})
    kind = next((k for k, resource in plugins.items() if resource in resources), None)
    count = int(resources[plugins[kind]]) if kind is not None else 0
    reasons = dict(devices_by_node(isolated).get(name, {}))
    # Where the cluster shows no such device, all of the node is shown as isolated for it.
    hidden_device_reason = next((why for index, why in reasons.items() if index >= count), None)
    reason = isolated.get(name, hidden_device_reason)
    health: Health = "isolated" if reasons else "ok"
    device_codes = codes or {}
    return NodeView(
        name=name,
        ready=service == "ready",
        isolated=reason is not None,
        reason=reason or ("" if fault is None else fault.message),
        maintenance=maintenance(node),
        devices=tuple(
            DeviceView(
                index=index,
                health=health if index < count else "faulty",  # the cluster gives it to no pod
                codes=device_codes.get(index, ()),
                isolated=reasons.get(index),
            )
            for index in sorted({*range(count), *device_codes})
        ),
        jobs=tuple(sorted(jobs.get(name, ()))),
        accelerator="nvidia" if kind == "nvidia" else "ascend" if kind == "ascend" else "none",
        slots_free=0 if reasons else 1,
        lists_codes=codes is not None,
    )
