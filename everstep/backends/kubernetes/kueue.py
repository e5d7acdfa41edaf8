"""What Kueue makes of pods in one of its queues: groups with a quota, and objects that it holds. Pure.

It admits a group of pods as one. A pod that replaces another one of a group takes its quota over: it has to
join that group, and only once the other one has ended, as Kueue deletes the newest pods of a group that is
too large. Pods that start a group of their own wait for quota of their own.
"""

from __future__ import annotations

from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.manifest import (
    KUEUE_FINALIZER,
    KUEUE_GROUP,
    KUEUE_QUEUE,
    KUEUE_SIZE,
    Gang,
)
from everstep.core.world import PlaceOrder

API = "/apis/kueue.x-k8s.io/v1beta2"


def queue_of(order: PlaceOrder) -> str:
    """The queue in which the pods of this order form groups of ours; empty: there is none."""
    labels = (order.pod_template.get("metadata") or {}).get("labels") or {}
    return "" if KUEUE_GROUP in labels else str(labels.get(KUEUE_QUEUE, ""))


def group_of(pod: Json) -> Gang | None:
    """The group of pods that this one is of."""
    metadata = pod["metadata"]
    name = metadata.get("labels", {}).get(KUEUE_GROUP, "")
    size = metadata.get("annotations", {}).get(KUEUE_SIZE, "")
    return Gang(name=name, size=int(size)) if name and size.isdecimal() else None


def reason(workload: Json) -> str:
    """Why Kueue does not admit the group that this workload stands for; empty: it does not say."""
    conditions = workload.get("status", {}).get("conditions", ())
    by_type = {one["type"]: one for one in conditions if one["status"] == "False"}
    condition = by_type.get("QuotaReserved") or by_type.get("Admitted") or {}
    return str(condition.get("message", ""))


def is_held(pod: Json) -> bool:
    """Whether the object of a deleted pod stays, as Kueue waits for one that replaces it."""
    metadata = pod["metadata"]
    return "deletionTimestamp" in metadata and KUEUE_FINALIZER in metadata.get("finalizers", ())


def released(pod: Json) -> Json:
    """A patch that lets the object go. It is refused where the object has changed meanwhile."""
    metadata = pod["metadata"]
    rest = [one for one in metadata["finalizers"] if one != KUEUE_FINALIZER]
    same = {key: metadata[key] for key in ("uid", "resourceVersion")}
    return {"metadata": {**same, "finalizers": rest}}
