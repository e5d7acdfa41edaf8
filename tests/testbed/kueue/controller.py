"""Kueue on loopback, beside a control plane of the test bed: the manifests and controller of one release.

The manifests come out of the Go module that the controller is built from. What a cluster does for Kueue is
done here: its webhooks' Service is another name of this machine, and its certificates are put into a folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from everstep.processes import free_port
from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.testbed.api import UNREACHABLE, Api, ApiError, Json
from tests.testbed.build import CONTROL_PLANE, KUEUE
from tests.testbed.controlplane import BinariesMissing, ClusterAccess

MODULE = "sigs.k8s.io/kueue"
_NAMESPACE = "kueue-system"
_SERVICE, _SECRET = "kueue-webhook-service", "kueue-webhook-server-cert"
_WEBHOOKS = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
_GROUPS = {"", "kueue.x-k8s.io"}
"""Whose objects Kueue looks at here: pods, and those of its own."""
_COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "Secret": f"/api/v1/namespaces/{_NAMESPACE}/secrets",
    "Service": f"/api/v1/namespaces/{_NAMESPACE}/services",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    **{
        kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s" for kind in sorted(_WEBHOOKS)
    },
}
"""What of the manifests is created, in this order. The controller is no pod, and has all rights."""


class Kueue:
    """The controller, which may be started again with other settings."""

    def __init__(self, api: Api, folder: Path, config: Json, *, kubeconfig: str) -> None:
        self._api = api
        self._folder = folder
        self._config = config
        self._env = {**os.environ, "KUBECONFIG": kubeconfig}
        self._child: Child | None = None

    async def start(self, **settings: object) -> None:
        """Return when it admits pods. `settings` are fields of its configuration."""
        self.stop()
        config = self._folder / "config.json"
        config.write_text(json.dumps({**self._config, **settings}))
        self._child = child = Child(
            [str(KUEUE.binaries_folder() / "kueue"), "--config", str(config)],
            name="kueue",
            log=self._folder / "kueue.log",
            cwd=self._folder,
            env=self._env,
        )
        certificates = Path(self._config["webhook"]["certDir"])
        await child.until(lambda: _are_written(self._api, certificates), within_s=HUNG_S)
        await child.until(lambda: _admits(self._api), within_s=HUNG_S)

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()


@asynccontextmanager
async def running(cluster: ClusterAccess, folder: Path) -> AsyncIterator[Kueue]:
    """Kueue in this cluster, ready to admit pods. `folder`: a new one, for its files."""
    if names := KUEUE.missing():
        raise BinariesMissing(f"{', '.join(names)} not built; run: make test-kueue")
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    webhook_port, health_port = free_port(), free_port()
    async with cluster.api() as api:
        objects = await asyncio.to_thread(_manifests)
        for kind, path in _COLLECTIONS.items():
            for body in objects:
                if body["kind"] == kind and (made := _adapted(body, webhook_port)):
                    await api.create(path, made)
        config = _config(certificates, webhook_port, health_port)
        kueue = Kueue(api, folder, config, kubeconfig=cluster.kubeconfig)
        try:
            await kueue.start()
            yield kueue
        finally:
            kueue.stop()
            for kind in reversed(_COLLECTIONS):  # webhooks of a dead controller refuse all pods
                if kind in _WEBHOOKS:
                    await api.delete_all(
                        _COLLECTIONS[kind], labelSelector="app.kubernetes.io/name=kueue"
                    )


def _manifests() -> list[Json]:
    """What an installation of this release creates."""
    kubectl = CONTROL_PLANE.binaries_folder() / "kubectl"
    text = subprocess.run(
        [kubectl, "kustomize", KUEUE.module_folder(MODULE) / "config" / "default"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _adapted(body: Json, port: int) -> Json | None:
    """The object for a controller that is a process of this machine; None: it is not needed."""
    if body["kind"] == "Service":
        spec = {"type": "ExternalName", "externalName": "localhost"}
        return {**body, "spec": spec} if body["metadata"]["name"] == _SERVICE else None
    if body["kind"] == "CustomResourceDefinition" and "conversion" in body["spec"]:
        body["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] = port
    if body["kind"] in _WEBHOOKS:
        body["webhooks"] = [
            one for one in body["webhooks"] if {*one["rules"][0]["apiGroups"]} <= _GROUPS
        ]
        for one in body["webhooks"]:
            one["clientConfig"]["service"]["port"] = port
    return body


def _config(certificates: Path, webhook_port: int, health_port: int) -> Json:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": _NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": _SERVICE,
            "webhookSecretName": _SECRET,
        },
        "integrations": {"frameworks": ["pod"]},
        "featureGates": {"VisibilityOnDemand": False},  # a server of its own
    }


async def _are_written(api: Api, folder: Path) -> bool:
    """Put the certificates into the folder, as a kubelet mounts a Secret; whether there are any."""
    path = f"{_COLLECTIONS['Secret']}/{_SECRET}"
    data = (await api.get(path)).get("data") or {}
    for name, text in data.items():
        (folder / name).write_bytes(b64decode(text))
    return bool(data)


async def _admits(api: Api) -> bool:
    """Whether its webhooks answer: objects of its own are refused until then."""
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "probe"},
    }
    with contextlib.suppress(ApiError, *UNREACHABLE):
        await api.create("/apis/kueue.x-k8s.io/v1beta2/resourceflavors", flavor, dryRun="All")
        return True
    return False
