"""What an operator of a cluster does: `kubectl`, and the overlay that puts deploy/kubernetes into one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.support.patience import HUNG_S
from tests.testbed.api import Json
from tests.testbed.build import CONTROL_PLANE
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.shared import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
WORKER = "everstep-worker"
"""The name of the Deployment, of its ConfigMap and of its service account."""


class KubectlFailed(AssertionError):
    """The command ended with an error, or warned."""


class Kubectl:
    """The command of an administrator, in one namespace."""

    def __init__(self, cluster: ClusterAccess, namespace: str, home: Path) -> None:
        self.binary = CONTROL_PLANE.binaries_folder() / "kubectl"
        self._namespace = namespace
        self._env = {**os.environ, "KUBECONFIG": cluster.kubeconfig, "HOME": str(home)}

    async def __call__(self, *words: str, warns: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            str(self.binary),
            "--namespace",
            self._namespace,
            *words,
            env=self._env,
            stdout=-1,
            stderr=-1,
        )
        async with asyncio.timeout(HUNG_S):
            output, errors = await process.communicate()
        if process.returncode or (b"Warning" in errors and not warns):
            raise KubectlFailed(f"kubectl {' '.join(words)}: {errors.decode()}")
        return output.decode()


def write_overlay(
    folder: Path, namespace: str, settings: Mapping[str, str], pod_spec: Json | None = None
) -> Path:
    """What an operator writes for a cluster; and this machine in place of an image.

    `settings` are variables of the workers, `pod_spec` is more of their pods' spec.
    """
    folder.mkdir()
    container = {
        "name": "worker",
        "command": [sys.executable, "-m", "worker"],
        "workingDir": str(ROOT),
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    # The machine's own Python belongs to root.
    root = {"runAsNonRoot": False, "runAsUser": 0}
    spec = {**(pod_spec or {}), "securityContext": root, "containers": [container]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": WORKER},
        "spec": {"template": {"spec": spec}},
    }
    literals = [f"{name}={value}" for name, value in settings.items()]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": [os.path.relpath(KUBERNETES, folder)],
        "images": [{"name": "everstep", "newName": "machine", "newTag": "1"}],
        "configMapGenerator": [{"name": WORKER, "behavior": "merge", "literals": literals}],
        "patches": [{"patch": yaml.safe_dump(deployment)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder
