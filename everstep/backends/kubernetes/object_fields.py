"""The fields of pods, nodes and leases that a worker reads, and so stores. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.manifest import KUEUE_GROUP, KUEUE_QUEUE, KUEUE_SIZE

Fields = Mapping[str, Any]
"""Name of a field -> `_ALL` of it, or the fields that it has itself; for a list, those of each member."""

_ALL: None = None
_IDENTITY = {"name": _ALL, "uid": _ALL, "resourceVersion": _ALL}
_CONDITION = {"type": _ALL, "status": _ALL, "reason": _ALL, "message": _ALL}
_CONTAINER = {"name": _ALL, "state": _ALL}

POD: Fields = {
    "metadata": {
        **_IDENTITY,
        "creationTimestamp": _ALL,
        "deletionTimestamp": _ALL,
        "labels": {
            names.ROLE: _ALL,
            names.SLOT: _ALL,
            names.GENERATION: _ALL,
            KUEUE_QUEUE: _ALL,
            KUEUE_GROUP: _ALL,
        },
        "annotations": {names.JOB: _ALL, names.KEEPS_OFF: _ALL, KUEUE_SIZE: _ALL},
        "finalizers": _ALL,
        "ownerReferences": {"uid": _ALL},
    },
    "spec": {
        "nodeName": _ALL,
        "nodeSelector": _ALL,
        "tolerations": _ALL,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _ALL}},
    },
    "status": {
        "phase": _ALL,
        "reason": _ALL,
        "message": _ALL,
        "podIP": _ALL,
        "conditions": _CONDITION,
        "initContainerStatuses": _CONTAINER,
        "containerStatuses": _CONTAINER,
    },
}
NODE: Fields = {
    "metadata": {
        **_IDENTITY,
        "creationTimestamp": _ALL,
        "labels": _ALL,
    },
    "spec": {"taints": _ALL, "unschedulable": _ALL},
    "status": {"conditions": {**_CONDITION, "lastTransitionTime": _ALL}, "allocatable": _ALL},
}
LEASE: Fields = {"metadata": _IDENTITY, "spec": {"renewTime": _ALL}}


def trimmed(item: Json, fields: Fields) -> Json:
    """A copy of the object that has these fields alone; `spec` is there even if it is empty.

    All copies share the strings of their field names, of which each parsed JSON text has new ones.
    """
    smaller: Json = _trimmed(item, fields)
    smaller.setdefault("spec", {})
    return smaller


def _trimmed(value: Any, fields: Fields | None) -> Any:
    if isinstance(value, list):
        return [_trimmed(member, fields) for member in value]
    if not isinstance(value, dict):
        return value
    present = value if fields is None else [name for name in fields if name in value]
    return {
        sys.intern(name): _trimmed(value[name], None if fields is None else fields[name])
        for name in present
    }
