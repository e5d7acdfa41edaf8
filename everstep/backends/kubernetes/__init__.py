"""A Kubernetes cluster: pods with agents, and everything that lasts in its API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.backends.tools import Tools
from everstep.core.errors import InvalidSpec

if TYPE_CHECKING:
    from everstep.backends.settings import BackendSettings


def settings_class() -> type[BackendSettings]:
    """How a worker opens the cluster. Raises InvalidSpec where the extra `kubernetes` is not installed."""
    try:
        from everstep.backends.kubernetes.worker_settings import KubernetesWorkerSettings
    except ModuleNotFoundError as error:
        what = f"needs the extra `kubernetes`: pip install 'everstep[kubernetes]' ({error})"
        raise InvalidSpec([("backend", what)]) from None

    return KubernetesWorkerSettings


def open_tools(**_settings: Any) -> Tools:
    """The cluster of the kubeconfig at hand. Raises InvalidSpec where the extra is not installed."""
    settings_class()
    from everstep.backends.kubernetes.tools import KubernetesTools

    return KubernetesTools()
