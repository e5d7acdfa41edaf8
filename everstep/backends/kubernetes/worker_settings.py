"""What a worker's environment says of the Kubernetes cluster whose jobs it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from everstep.backends.base import Backend
from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.backends.kubernetes.manifest import TOPOLOGY
from everstep.backends.kubernetes.settings import KubernetesSettings
from everstep.backends.settings import BackendSettings, ObserverMessages, PositiveSeconds
from everstep.protocol.wire import LOG_MB, ORPHAN_S, THRESHOLDS, Thresholds


class KubernetesWorkerSettings(BackendSettings):
    """Without a kubeconfig the service account of the worker's own pod is used."""

    kubeconfig: str | None = None
    kube_context: str | None = None  # of the kubeconfig; else its current one
    kube_namespace: str = Field(default="everstep", min_length=1)  # of the workers
    kube_default_namespace: str = ""  # of jobs that name none; empty: that of the workers
    kube_job_namespaces: tuple[str, ...] = ()  # others that documents may name
    # Accelerator -> the resource that its device plugin offers, such as `nvidia.com/gpu`.
    kube_resources: Mapping[str, str] = Field(default_factory=dict)
    # Least priority of a document -> its PriorityClass.
    kube_priority_classes: Mapping[int, str] = Field(default_factory=dict)
    kube_topology: tuple[str, ...] = TOPOLOGY  # labels of nodes that pods of a job prefer to share
    # Read what device plugins write into kube-system: needs a right there.
    kube_device_info: bool = False
    orphan_s: PositiveSeconds = ORPHAN_S  # an agent that no worker polls for so long ends itself
    log_mb: float = Field(default=LOG_MB, ge=16, le=1_000_000)  # what of a rank's log stays
    precheck: Thresholds = THRESHOLDS  # what a place needs before a command runs there

    async def open(
        self,
        *,
        make_home: Callable[[], Path],  # noqa: ARG002  # nothing is kept on the worker's machine
        server: str,  # of Temporal
        messages: Sequence[ObserverMessages] = (),
    ) -> Backend:
        settings = KubernetesSettings(
            kubeconfig=self.kubeconfig,
            context=self.kube_context,
            namespace=self.kube_namespace,
            default_namespace=self.kube_default_namespace,
            job_namespaces=self.kube_job_namespaces,
            server=server,
            orphan_s=self.orphan_s,
            log_mb=self.log_mb,
            thresholds=self.precheck,
            resources=self.kube_resources,
            priority_classes=self.kube_priority_classes,
            topology=self.kube_topology,
            # Messages in a namespace of their own are the device plugins', in kube-system.
            messages=[one for one in messages if not one.namespace or self.kube_device_info],
        )
        return await KubernetesBackend.open(settings)
