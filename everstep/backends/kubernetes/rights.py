"""What a worker does in its cluster, as rights of RBAC. deploy/kubernetes grants these and no others."""

from __future__ import annotations

from collections.abc import Mapping

SERVICE_ACCOUNT = "everstep-worker"

IN_WORKERS_NAMESPACE: Mapping[str, tuple[str, ...]] = {
    "configmaps": ("create", "get", "list", "watch", "patch"),
}
"""Resource to verbs. A resource outside the core group is written as `podgroups.scheduling.k8s.io`."""

IN_JOB_NAMESPACE: Mapping[str, tuple[str, ...]] = {
    "pods": ("create", "get", "list", "watch", "delete", "patch"),
    "configmaps": ("create", "get", "list", "update"),
    "secrets": ("create", "get", "delete"),
    "podgroups.scheduling.k8s.io": ("create", "list", "patch", "delete"),
    "workloads.kueue.x-k8s.io": ("get",),
    "networkpolicies.networking.k8s.io": ("create", "delete"),
    "events": ("create",),
}
"""Rights in each namespace of jobs. deploy/job-namespace grants them."""

IN_CLUSTER: Mapping[str, tuple[str, ...]] = {
    "nodes": ("list", "watch"),
    "leases.coordination.k8s.io": ("list", "watch"),
}
