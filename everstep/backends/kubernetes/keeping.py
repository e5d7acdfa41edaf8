"""The fields that are kept of an object of the API server: those that are read. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json

Fields = Mapping[str, Any]
"""By name what is kept of a field: `_ALL`, or fields of its own. Those of a list are those of its members."""

_ALL: None = None
_IDENTITY = {"name": _ALL, "uid": _ALL, "resourceVersion": _ALL}
_CONDITION = {"type": _ALL, "status": _ALL, "reason": _ALL, "message": _ALL}
_CONTAINER = {"name": _ALL, "state": _ALL}

POD: Fields = {
    "metadata": {
        **_IDENTITY,
        "creationTimestamp": _ALL,
        "deletionTimestamp": _ALL,
        "labels": {names.ROLE: _ALL},
        "annotations": {names.JOB: _ALL},
    },
    "spec": {"nodeName": _ALL},
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
        "labels": {"kubernetes.io/hostname": _ALL},
    },
    "spec": {"taints": _ALL, "unschedulable": _ALL},
    "status": {"conditions": {**_CONDITION, "lastTransitionTime": _ALL}, "allocatable": _ALL},
}
LEASE: Fields = {"metadata": _IDENTITY, "spec": {"renewTime": _ALL}}


def only(item: Json, fields: Fields) -> Json:
    """A copy of the object with these fields; `metadata` and `spec` are always there.

    Each name is one string for all objects: the JSON of an object brings its own.
    """
    smaller: Json = _only(item, fields)
    smaller.setdefault("spec", {})
    return smaller


def _only(value: Any, fields: Fields | None) -> Any:
    if isinstance(value, list):
        return [_only(member, fields) for member in value]
    if not isinstance(value, dict):
        return value
    names = value if fields is None else [name for name in fields if name in value]
    return {
        sys.intern(name): _only(value[name], None if fields is None else fields[name])
        for name in names
    }
