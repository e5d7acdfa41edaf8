"""A worker stores of each object the fields that it reads, and no others."""

from __future__ import annotations

import json
from typing import Any

from everstep.backends.kubernetes.object_fields import LEASE, NODE, POD, Fields, trimmed

METADATA: dict[str, Any] = {
    "name": "one",
    "uid": "u-1",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "labels": {"everstep.dev/role": "releaser", "kubernetes.io/hostname": "host", "x": "y"},
    "annotations": {"everstep.dev/job": "a-job", "x": "y"},
    "managedFields": [{"manager": "kubelet"}],
    "ownerReferences": [{"uid": "u-0"}],
}
IDENTITY = {key: METADATA[key] for key in ("name", "uid", "resourceVersion")}
CONDITION = {"type": "Ready", "status": "False", "reason": "Because", "message": "so"}
TIMES = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:01Z"}
STATE = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


NODES_OF_POD: dict[str, Any] = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}
        }
    },
}


def copied(item: object, fields: Fields) -> dict[str, Any]:
    """Of the object as it comes from the API server: each with strings of its own."""
    return trimmed(json.loads(json.dumps(item)), fields)


def test_of_a_pod_only_what_a_job_reads_is_stored() -> None:
    pod = {
        "metadata": METADATA,
        "spec": {"nodeName": "node", "containers": [{"name": "everstep"}], **NODES_OF_POD},
        "status": {
            "phase": "Failed",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [CONDITION | TIMES],
            "containerStatuses": [{"name": "everstep", "state": STATE, "imageID": "sha256:1"}],
        },
    }
    assert copied(pod, POD) == {
        "metadata": {
            **IDENTITY,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"everstep.dev/role": "releaser"},
            "annotations": {"everstep.dev/job": "a-job"},
            "ownerReferences": [{"uid": "u-0"}],
        },
        "spec": {"nodeName": "node", **NODES_OF_POD},
        "status": {
            "phase": "Failed",
            "podIP": "10.0.0.1",
            "conditions": [CONDITION],
            "containerStatuses": [{"name": "everstep", "state": STATE}],
        },
    }


def test_of_a_node_only_its_service_its_devices_and_who_may_use_it_are_stored() -> None:
    node = {
        "metadata": METADATA,
        "spec": {"unschedulable": True, "podCIDR": "10.0.0.0/24"},
        "status": {
            "conditions": [CONDITION | TIMES],
            "allocatable": {"cpu": "2"},
            "capacity": {"cpu": "2"},
            "images": [{"names": ["an-image"]}],
        },
    }
    assert copied(node, NODE) == {
        "metadata": {
            **IDENTITY,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": METADATA["labels"],
        },
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [CONDITION | {"lastTransitionTime": "2026-01-01T00:00:01Z"}],
            "allocatable": {"cpu": "2"},
        },
    }


def test_of_a_lease_only_the_time_of_its_renewal_is_stored() -> None:
    lease = {"metadata": METADATA, "spec": {"holderIdentity": "one", "renewTime": "now"}}
    assert copied(lease, LEASE) == {"metadata": IDENTITY, "spec": {"renewTime": "now"}}


def test_an_object_without_a_spec_has_an_empty_one() -> None:
    assert copied({"metadata": METADATA}, LEASE)["spec"] == {}


def test_objects_share_the_names_of_their_fields() -> None:
    one, other = (
        copied({"metadata": METADATA, "status": {"containerStatuses": [{"state": STATE}]}}, POD)
        for _ in range(2)
    )

    def names(value: Any) -> list[str]:
        if isinstance(value, list):
            return [name for member in value for name in names(member)]
        if not isinstance(value, dict):
            return []
        return [*value, *(name for member in value.values() for name in names(member))]

    assert "exitCode" in names(one)
    assert list(map(id, names(one))) == list(map(id, names(other)))
