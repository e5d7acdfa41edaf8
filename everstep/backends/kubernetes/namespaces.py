"""The namespaces in which a worker makes pods: its own, and those that its settings allow to documents.

A job has one of them for life: its pods, its Secret and its record are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.agent_client.watch import Agents
from everstep.backends.kubernetes.books import ConfigMapBooks
from everstep.backends.kubernetes.placing.placer import PodPlacer
from everstep.backends.kubernetes.placing.reconciler import PodReconciler
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.core.errors import InvalidSpec
from everstep.core.world import JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNamespace:
    """What a worker has for the jobs of one namespace."""

    name: str
    books: ConfigMapBooks
    pods: KubernetesPods
    agents: Agents
    placer: PodPlacer
    reconciler: PodReconciler

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.name}"


def namespace_of(job: JobRef, namespaces: Mapping[str, JobNamespace]) -> JobNamespace:
    """The job's; the first one is that of the workers. Raises InvalidSpec where it is none of these."""
    if not job.namespace:
        return next(iter(namespaces.values()))
    if job.namespace not in namespaces:
        allowed = ", ".join(namespaces)
        what = (
            f"is {job.namespace}, and the workers of this cluster make pods in {allowed}"
            " (EVERSTEP_KUBE_JOB_NAMESPACES)"
        )
        raise InvalidSpec([("spec.namespace", what)])
    return namespaces[job.namespace]
