"""What a cluster makes for a job: pods of Kubernetes, or processes of the machine of its worker."""

from __future__ import annotations

from collections.abc import Callable

HasPods = Callable[[str], bool]
"""Whether the cluster of this name makes pods."""

_PROCESSES = frozenset({"local", "fake"})


def has_pods_by_name(cluster: str) -> bool:
    """For a cluster that another worker serves: its name may be a backend's, all else is Kubernetes."""
    return cluster not in _PROCESSES
