"""What the API server reports of a node, as tables: its conditions and taints, and who writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.backends.kubernetes.pod_facts import seconds
from everstep.backends.rules.nodes import Service
from everstep.core.facts import Fact

Json = Mapping[str, Any]
"""An object of the API, as the server wrote it."""

LEASE_AGE_S = 15.0
"""A kubelet renews its lease every 10 s. The cluster itself calls a node not ready after 50 s of silence."""

NOT_READY = "node.not_ready"
MAINTENANCE = "maintenance.notice"
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """A condition whose type matches is a fact of this kind while it has this status.

    A code of NVIDIA in its reason or message makes it a fault of a device instead.
    """

    condition: str  # a pattern
    status: str
    kind: str
    source: str
    why: str


CONDITIONS: tuple[ConditionRow, ...] = (
    ConditionRow(
        condition="AcceleratedHardwareReady",
        status="False",
        kind="node.unhealthy",
        source="EKS node monitoring",
        why="a device of the node is broken; the node is replaced or rebooted",
    ),
    ConditionRow(
        condition="(Kernel|Storage|Networking|ContainerRuntime)Ready",
        status="False",
        kind="subhealth.node",
        source="EKS node monitoring",
        why="the node may be repaired soon; a rank that suffers from it shows that by itself",
    ),
    ConditionRow(
        condition="Gpu[A-Za-z]+Watch|SysLogs[A-Za-z]+",
        status="True",
        kind="node.unhealthy",
        source="NVSentinel",
        why="a fatal error of a device or of the links between devices",
    ),
    ConditionRow(
        condition="KernelDeadlock|ReadonlyFilesystem|XfsShutdown|CperHardwareErrorFatal",
        status="True",
        kind="node.unhealthy",
        source="node-problem-detector",
        why="nothing on the node can be relied on until it is rebooted",
    ),
    ConditionRow(
        condition="Frequent[A-Za-z]+|KubeletUnhealthy|ContainerRuntimeUnhealthy|CorruptDockerOverlay2",
        status="True",
        kind="subhealth.node",
        source="node-problem-detector",
        why="new pods may not start there; what runs goes on",
    ),
    ConditionRow(
        condition="(Memory|Disk|PID)Pressure",
        status="True",
        kind="subhealth.node",
        source="kubelet",
        why="the node is low on a resource and may evict pods",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintRow:
    """A taint whose key matches is a fact of this kind while the node has it."""

    key: str  # a pattern
    kind: str
    source: str
    why: str


TAINTS: tuple[TaintRow, ...] = (
    TaintRow(
        key=r"AggregatedNodeHealth|nvidia\.com/(gpu|syslog)-[a-z-]*error",
        kind="node.unhealthy",
        source="NVSentinel",
        why="the node is in quarantine for a fatal error",
    ),
    TaintRow(
        key=r"karpenter\.sh/disrupted",
        kind=MAINTENANCE,
        source="Karpenter",
        why="the node is about to be replaced",
    ),
    TaintRow(
        key=r"ToBeDeletedByClusterAutoscaler",
        kind=MAINTENANCE,
        source="cluster autoscaler",
        why="the node is about to be removed",
    ),
    TaintRow(
        key=r"aws-node-termination-handler/.*|cloud\.google\.com/impending-node-termination",
        kind=MAINTENANCE,
        source="cloud provider",
        why="the machine is about to be taken away",
    ),
)


def faults_of(node: Json, *, now: float) -> Iterator[Fact]:
    """All that is wrong with the node, with the same identity for every worker."""
    if (out := service_fault(node, now=now)) is not None:
        yield out
    yield from _condition_faults(node)
    yield from _taint_faults(node)


# -- Whether a node is in service -------------------------------------------------------------------


def node_service(node: Json) -> tuple[Service, float | None]:
    """Whether the node is in service, and since when it is not. Without a Ready condition it counts as ready.

    Down: an operator marked it as powered off, which proves the end of all that ran there.
    """
    if any(taint["key"] == _OUT_OF_SERVICE for taint in _taints(node)):
        return "down", None
    ready = _ready(node)
    if ready is None or ready["status"] == "True":
        return "ready", None
    return "cut_off", seconds(_began(node, ready))


def service_fault(node: Json, *, now: float) -> Fact | None:
    """The fact that a node is out of service; None if it is not."""
    service, since = node_service(node)
    if service == "ready":
        return None
    name, ready = node["metadata"]["name"], _ready(node) or {}
    began = _began(node, ready) if ready else ""
    if service == "cut_off":
        kind = NOT_READY
        why = ready.get("message") or ready.get("reason") or "it is out of service"
        message = f"{name} is not ready: {why}"
    else:
        # The Ready condition may be from before the machine lost its power.
        kind, message = "node.down", f"{name} is down: an operator marked it as out of service"
    return Fact(
        id=f"{name}/{kind}/{began}",
        kind=kind,
        at=now if since is None else since,
        node=name,
        message=message,
    )


def deleted(name: str, *, at: float) -> Fact:
    """The fact that the object of a node is gone."""
    message = f"{name} was removed from the cluster"
    return Fact(id=f"{name}/deleted", kind="node.down", at=at, node=name, message=message)


def silent(name: str, *, renewed: str, at: float) -> Fact:
    """The fact that the kubelet of a node does not renew its lease. Its ranks may train on."""
    message = f"the kubelet of {name} has not renewed its lease for {LEASE_AGE_S:g} s"
    return Fact(
        id=f"{name}/lease/{renewed}", kind="subhealth.lease", at=at, node=name, message=message
    )


def maintenance(node: Json) -> str:
    """Why the node gets no new pods for now, by its cordon and its taints; empty: it may get some."""
    name = node["metadata"]["name"]
    if node["spec"].get("unschedulable"):
        return f"{name} is cordoned"
    notices = (fact for fact in _taint_faults(node) if fact.kind == MAINTENANCE)
    return next((fact.message for fact in notices), "")


def _ready(node: Json) -> Mapping[str, str] | None:
    return next((one for one in _conditions(node) if one["type"] == "Ready"), None)


def _conditions(node: Json) -> Iterable[Mapping[str, str]]:
    conditions: Iterable[Mapping[str, str]] = node.get("status", {}).get("conditions", ())
    return conditions


def _began(node: Json, condition: Mapping[str, str]) -> str:
    """When a condition last changed; its time is optional."""
    return str(condition.get("lastTransitionTime") or node["metadata"]["creationTimestamp"])


def _taints(node: Json) -> Iterable[Mapping[str, str]]:
    taints: Iterable[Mapping[str, str]] = node["spec"].get("taints", ())
    return taints


# -- What monitors report of it ---------------------------------------------------------------------

_XIDS = (
    r"Nvidia(XID)(\d+)Error",  # the reason as EKS writes it
    r"ErrorCode:\s*()(\d+)\b",  # the message as NVSentinel writes it
    r"\b(S?XID)\D{0,12}(\d+)\b",
)
_DEVICE = r"\bGPU:\s*(\d{1,3})\b"


def _condition_faults(node: Json) -> Iterator[Fact]:
    for condition in _conditions(node):
        row = _condition_row(condition)
        if row is not None:
            yield _fault(row.kind, node, condition, began=_began(node, condition))


def _condition_row(condition: Mapping[str, str]) -> ConditionRow | None:
    return next(
        (
            row
            for row in CONDITIONS
            if row.status == condition["status"] and re.fullmatch(row.condition, condition["type"])
        ),
        None,
    )


def _fault(kind: str, node: Json, condition: Mapping[str, str], *, began: str) -> Fact:
    name, subject = node["metadata"]["name"], condition["type"]
    reason, message = condition.get("reason") or "", condition.get("message") or ""
    code = _nvidia_code(subject, f"{reason} {message}") if kind == "node.unhealthy" else None
    device = re.search(_DEVICE, message) if code is not None else None
    return Fact(
        # A monitor replaces the reason where one error follows another.
        id="/".join(filter(None, (name, subject, reason, began))),
        kind=kind if code is None else "device.fault",
        at=seconds(began),
        node=name,
        device=None if device is None else int(device[1]),
        code=code,
        message=": ".join(filter(None, (f"{name}: {subject}", reason, message))),
    )


def _nvidia_code(subject: str, text: str) -> str | None:
    """The code of NVIDIA's driver in a condition: `XID 79`; None: it has none."""
    matches = (re.search(pattern, text, re.IGNORECASE) for pattern in _XIDS)
    match = next((one for one in matches if one is not None), None)
    if match is None:
        return None
    family = match[1].upper() or ("SXID" if "SXID" in subject else "XID")
    return f"{family} {int(match[2])}"


def _taint_faults(node: Json) -> Iterator[Fact]:
    name = node["metadata"]["name"]
    for taint in _taints(node):
        row = next((row for row in TAINTS if re.fullmatch(row.key, taint["key"])), None)
        if row is None:
            continue
        # Only taints that evict have a time; another one is a fact once for as long as the node lives.
        began = taint.get("timeAdded") or node["metadata"]["creationTimestamp"]
        yield Fact(
            id=f"{name}/{taint['key']}/{began}",
            kind=row.kind,
            at=seconds(began),
            node=name,
            message=f"{name}: taint {taint['key']} ({row.source}): {row.why}",
        )
