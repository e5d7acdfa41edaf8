"""How a worker reaches and uses a Kubernetes cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.backends.kubernetes.manifest import TOPOLOGY
from everstep.backends.settings import ObserverMessages
from everstep.protocol import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """One cluster, and where in it a worker makes pods."""

    namespace: str  # of the workers
    default_namespace: str = ""  # of jobs that name none; empty: that of the workers
    job_namespaces: Sequence[str] = ()  # others that jobs may name
    kubeconfig: str | None = None  # None: the service account of the pod that the worker runs in
    context: str | None = None  # of the kubeconfig; None: its current one
    server: str = ""  # the Temporal server whose jobs this worker runs
    fence_s: float = wire.FENCE_S
    fence_margin_s: float = 5.0
    not_ready_s: float = 30.0
    """How long a node may be not ready while its agents answer, before that is a fact for their jobs."""
    orphan_s: float = wire.ORPHAN_S  # an agent that no worker polls for so long ends
    log_mb: float = wire.LOG_MB  # what of a rank's log stays in its pod
    thresholds: wire.Thresholds = wire.THRESHOLDS  # of the checks before a start
    # Accelerator -> the resource that its device plugin offers, such as `nvidia.com/gpu`.
    resources: Mapping[str, str] = field(default_factory=dict)
    uses_pod_groups: bool = True  # where the API server has them
    gang_s: float = 30.0
    """How long pods may hold places while others of the job have none, where there are no PodGroups."""
    # Least priority of a document -> its PriorityClass.
    priority_classes: Mapping[int, str] = field(default_factory=dict)
    topology: Sequence[str] = TOPOLOGY  # labels of nodes that pods of a job prefer to share
    messages: Sequence[ObserverMessages] = ()  # of external observers
    environ: Mapping[str, str] = field(default_factory=os.environ.copy, repr=False)
    """The worker's environment: a rank gets of it only what its document takes by name."""

    @property
    def all_job_namespaces(self) -> Sequence[str]:
        """Where pods of jobs may be, first those of jobs that name no namespace."""
        default = self.default_namespace or self.namespace
        return tuple(dict.fromkeys((default, *self.job_namespaces)))

    @property
    def workers_in(self) -> str | None:
        """The namespace of the workers' pods; None: a worker with a kubeconfig may run anywhere."""
        return self.namespace if self.kubeconfig is None else None
