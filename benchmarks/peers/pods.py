"""Everstep and JobSet beside each other on one Kubernetes control plane of this machine (tests/testbed).

Each has a job of two ranks in two pods, on nodes of its own. No image is pulled and no network is set up. The
time runs from the fault to the moment when the last rank of the next attempt begins, which each rank writes
down; what a script needs from there to its first step is the same under both. As root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import yaml

from benchmarks import kubernetes_restart as ours
from benchmarks.kubernetes_restart import Bed
from benchmarks.peers.ranks import until
from benchmarks.support import cluster
from benchmarks.support.cluster import NAMESPACE, Cluster
from everstep.processes import free_port
from tests.kubernetes.jobs import STORAGE, TRAINER
from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.testbed.api import UNREACHABLE, ApiError, Json
from tests.testbed.build import GoModule

JOBSET = GoModule(
    folder=Path(__file__).with_name("jobset"),
    packages={"jobset": "sigs.k8s.io/jobset"},
    flags=["-trimpath", "-ldflags", "-s -w"],
)
MODULE = "sigs.k8s.io/jobset"
SETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
RANKS = (0, 1)
OF = "peers.everstep.dev/of"
"""The label of a node: whose it is."""
NOTICED_S = 0.2


class Contender(Protocol):
    """A job of two ranks in pods, and what keeps it."""

    name: str

    async def trains(self) -> int:
        """Return the number of the attempt once both ranks of it run."""

    async def begun(self, *, above: int) -> float:
        """Return when the last rank of a later attempt began."""

    async def pod(self) -> Json:
        """The one of rank 1."""

    async def restart_controller(self) -> None:
        """SIGKILL, and another one at once."""


@dataclass(kw_only=True)
class Everstep:
    bed: Bed
    name: str = "everstep"

    async def trains(self) -> int:
        return await self.bed.trains()

    async def begun(self, *, above: int) -> float:
        return await self.bed.begun(above=above)

    async def pod(self) -> Json:
        return await self.bed.pod(1)

    async def restart_controller(self) -> None:
        worker = self.bed.cluster.workers[0]
        worker.kill9()
        worker.cwd = (
            self.bed.storage
        )  # another folder: it starts with all its imports, as in a container
        await worker.start()


@dataclass(kw_only=True)
class JobSet:
    """Its controller as a process of this machine, without leader election: that would wait for a lease."""

    at: Cluster
    folder: Path
    storage: Path
    name: str = "JobSet"
    _port: int = field(default_factory=free_port)
    _child: Child | None = None

    @property
    def _served(self) -> Path:
        """The certificate of the API server, which is for 127.0.0.1 too."""
        return Path(self.at.access.ca_file)

    async def install(self) -> None:
        """Its definitions, out of the Go module that the controller is built from."""
        config = JOBSET.module_folder(MODULE) / "config" / "components"
        for path in sorted((config / "crd" / "bases").glob("*.yaml")):
            await self.at.api.create(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _first(path)
            )
        await self.start()
        for body in yaml.safe_load_all((config / "webhook" / "manifests.yaml").read_text()):
            await self._install_webhooks(body)
        await until(self._admits, "the webhooks of JobSet", within_s=HUNG_S)

    async def _install_webhooks(self, body: Json) -> None:
        kind = body["kind"]
        authority = b64encode(self._served.read_bytes()).decode()
        for hook in body["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            url = f"https://127.0.0.1:{self._port}{path}"
            hook["clientConfig"] = {"url": url, "caBundle": authority}
        body["metadata"]["name"] = f"jobset-{body['metadata']['name']}"
        await self.at.api.create(f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s", body)

    async def start(self) -> None:
        certificates = self.folder / "certificates"
        certificates.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._served, certificates / "tls.crt")
        shutil.copy(self._served.with_suffix(".key"), certificates / "tls.key")
        config = self.folder / "config.json"
        config.write_text(json.dumps(self._config(certificates)))
        command = [str(JOBSET.binaries_folder() / "jobset"), "--config", str(config)]
        self._child = Child(
            [*command, "--kubeconfig", self.at.access.kubeconfig],
            name="jobset",
            log=self.folder / "jobset.log",
        )

    def _config(self, certificates: Path) -> Json:
        return {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(certificates)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        }

    async def _admits(self) -> bool:
        with contextlib.suppress(ApiError, *UNREACHABLE):
            await self.at.api.create(SETS, job_set(), dryRun="All")
            return True
        return False

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()

    async def restart_controller(self) -> None:
        self.stop()
        await self.start()

    async def _pods(self) -> list[Json]:
        items: list[Json] = (
            await self.at.api.get(PODS, labelSelector="jobset.sigs.k8s.io/jobset-name=peer")
        )["items"]
        return [
            one
            for one in items
            if "deletionTimestamp" not in one["metadata"] and one["status"]["phase"] == "Running"
        ]

    async def pod(self) -> Json:
        return next(pod for pod in await self._pods() if _label(pod, "job-index") == "1")

    async def trains(self) -> int:
        attempts: list[str] = []

        async def both_run() -> bool:
            attempts[:] = [_label(pod, "restart-attempt") for pod in await self._pods()]
            return len(attempts) == len(RANKS) and len(set(attempts)) == 1

        await until(both_run, "both pods of JobSet")
        return int(attempts[0])

    async def begun(self, *, above: int) -> float:
        while True:
            for path in self.storage.glob(f"begun-jobset/*-{RANKS[0]}"):
                attempt = int(path.name.partition("-")[0])
                others = [path.with_name(f"{attempt}-{rank}") for rank in RANKS]
                if attempt > above and all(_is_written(one) for one in others):
                    return max(float(one.read_text()) for one in others)
            await asyncio.sleep(ours.POLL_S)


def _label(pod: Json, name: str) -> str:
    return str(pod["metadata"]["labels"][f"jobset.sigs.k8s.io/{name}"])


def _is_written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def _first(path: Path) -> Json:
    body: Json = next(yaml.safe_load_all(path.read_text()))
    return body


def _from_label(variable: str, name: str) -> Json:
    path = f"metadata.labels['jobset.sigs.k8s.io/{name}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def job_set(storage: Path | None = None) -> Json:
    """Two Jobs of a pod: a Job of two pods takes longer to be recreated."""
    begin = f"date +%s.%N > {STORAGE}/begun-jobset/$ATTEMPT-$INDEX; exec sleep 100000"
    container = {
        "name": "train",
        "image": "machine",
        "command": ["/bin/sh", "-c", begin],
        "env": [_from_label("ATTEMPT", "restart-attempt"), _from_label("INDEX", "job-index")],
        "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {OF: "JobSet"},
        "volumes": [{"name": "storage", "hostPath": {"path": str(storage or "/")}}],
        "containers": [container],
    }
    job = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": {"spec": pod}}
    ranks = {"name": "ranks", "replicas": len(RANKS), "template": {"spec": job}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "peer"},
        "spec": {
            "network": {
                "enableDNSHostnames": False
            },  # addresses of loopback are refused for Services
            "failurePolicy": {"maxRestarts": 1000},
            "replicatedJobs": [ranks],
        },
    }


# -- The cluster with both ----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Ground:
    """A cluster with both jobs, and nodes of each that can be lost."""

    at: Cluster
    contenders: Mapping[str, Contender]
    _nodes: int = 0

    async def add_node(self, of: str) -> None:
        await self.at.machines.add_node(f"node-{self._nodes}", labels={OF: of})
        self._nodes += 1

    async def strike(self, fault: str, name: str) -> float:
        """Seconds from this fault to the job's next attempt. Faults: container, node, controller."""
        contender = self.contenders[name]
        attempt = await contender.trains()
        pod = await contender.pod()
        if fault == "node":
            await self.add_node(name)
        at = time.time()
        if fault == "node":
            await self.at.machines.remove_node(pod["spec"]["nodeName"])
        else:
            own = {"namespace": NAMESPACE, "pod": pod["metadata"]["name"]}
            await self.at.machines.fault("container-kill", **own)
        if fault == "controller":
            await asyncio.sleep(NOTICED_S)
            await contender.restart_controller()
        return await contender.begun(above=attempt) - at


@asynccontextmanager
async def ground(folder: Path, *, with_jobset: bool) -> AsyncIterator[Ground]:
    """Both jobs run. Nothing is left of it afterwards."""
    if os.geteuid() != 0:
        raise PermissionError("the test cluster needs root")
    storage = folder / "storage"
    for path in (storage / "control", storage / "begun", storage / "begun-jobset"):
        path.mkdir(parents=True)
        path.chmod(0o777)  # ranks are another user
    for path in (folder, storage):
        path.chmod(0o777)
    shutil.copy(TRAINER, storage)
    async with cluster.cluster(folder) as found:
        row = ours.ROWS["container"]
        document = ours.document(storage, row)
        document["spec"]["pod_template"]["spec"]["nodeSelector"] = {OF: "everstep"}
        job = await found.submit(document)
        contenders: dict[str, Contender] = {
            "everstep": Everstep(bed=Bed(cluster=found, job=job, storage=storage))
        }
        field_ = Ground(at=found, contenders=contenders)
        peer = JobSet(at=found, folder=folder / "jobset", storage=storage)
        try:
            for name in ("everstep", "JobSet"):
                for _ in (*RANKS, "spare"):
                    await field_.add_node(name)
            if with_jobset:
                await peer.install()
                await found.api.create(SETS, job_set(storage))
                contenders["JobSet"] = peer
            yield field_
        finally:
            peer.stop()
