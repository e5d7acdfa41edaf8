"""What an operator of a cluster does: `kubectl`, and the overlay that puts deploy/kubernetes into one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.patience import HUNG_S
from tests.testbed.api import Json
from tests.testbed.build import CONTROL_PLANE
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.shared import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES, SETUP, TRY = DEPLOY / "kubernetes", DEPLOY / "setup", DEPLOY / "try"
OF_JOBS, NAMES, GROUP = DEPLOY / "job-namespace", DEPLOY / "names", DEPLOY / "group"
ENCRYPTION = DEPLOY / "encryption"
EVERSTEP = "from everstep.cli.script import run; run()"
WORKER = "everstep-worker"
"""The name of the Deployment, of its ConfigMap and of its service account."""


class KubectlFailed(AssertionError):
    """The command ended with an error, or warned."""


class Kubectl:
    """The command of an administrator, in one namespace; "": in those that objects name."""

    def __init__(self, cluster: ClusterAccess, namespace: str, home: Path) -> None:
        self.binary = CONTROL_PLANE.binaries_folder() / "kubectl"
        self._where = ("--namespace", namespace) if namespace else ()
        self._env = {**os.environ, "KUBECONFIG": cluster.kubeconfig, "HOME": str(home)}

    async def __call__(self, *words: str, warns: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            str(self.binary),
            *self._where,
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
    folder: Path,
    namespace: str,
    settings: Mapping[str, str],
    pod_spec: Json | None = None,
    *,
    with_setup: bool = False,
    jobs_in: str = "",
) -> Path:
    """What an operator writes for a group of workers; and this machine in place of an image.

    `settings` are variables of the workers, `pod_spec` is more of their pods' spec, `jobs_in` is another
    namespace for the jobs. Both are there already: a process of this machine needs more than they allow.
    """
    folder.mkdir()
    worker = {"name": "worker", "command": [sys.executable, "-m", "worker"]}
    patches = [_on_this_machine("apps/v1", "Deployment", WORKER, worker, pod_spec)]
    if with_setup:
        setup = {"name": "setup", "command": [sys.executable, "-c", EVERSTEP, "setup"]}
        patches.append(_on_this_machine("batch/v1", "Job", "everstep-setup", setup))
    folders = [KUBERNETES, SETUP] if with_setup else [KUBERNETES]
    literals = [f"{name}={value}" for name, value in settings.items()]
    _write(
        folder / "workers",
        resources=folders,
        namespace=namespace,
        images=[{"name": "everstep", "newName": "machine", "newTag": "1"}],
        configMapGenerator=[{"name": WORKER, "behavior": "merge", "literals": literals}],
        patches=[_NO_NAMESPACE, *({"patch": yaml.safe_dump(one)} for one in patches)],
    )
    _write(
        folder / "jobs",
        resources=[OF_JOBS],
        namespace=jobs_in or namespace,
        patches=[_NO_NAMESPACE],
    )
    _write(folder, resources=[folder / "workers", folder / "jobs"], transformers=[NAMES])
    return folder


_NO_NAMESPACE = {
    "target": {"kind": "Namespace"},
    "patch": "{$patch: delete, apiVersion: v1, kind: Namespace, metadata: {name: any}}",
}


def _write(folder: Path, **fields: Any) -> None:
    """A kustomization of these fields; folders in it are relative."""
    folder.mkdir(exist_ok=True)
    for name in {"resources", "transformers"} & fields.keys():
        fields[name] = [os.path.relpath(one, folder) for one in fields[name]]
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**head, **fields}))


def _on_this_machine(
    api: str, kind: str, name: str, container: Json, pod_spec: Json | None = None
) -> Json:
    """A patch with which the object's container is a process of this machine.

    Our code is mounted where it is, since a volume of the manifest, as that of /tmp, may hide it.
    """
    code = {"name": "code", "hostPath": {"path": str(ROOT)}}
    run = {
        **container,
        "workingDir": str(ROOT),
        "volumeMounts": [{"name": "code", "mountPath": str(ROOT), "readOnly": True}],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    # The machine's own Python belongs to root.
    root = {"runAsNonRoot": False, "runAsUser": 0}
    more = pod_spec or {}
    volumes = [*more.get("volumes", ()), code]
    spec = {**more, "securityContext": root, "containers": [run], "volumes": volumes}
    template = {"spec": {"template": {"spec": spec}}}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **template}
