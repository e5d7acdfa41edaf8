"""A real control plane on loopback with a Temporal server and workers, as long as a benchmark needs them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from everstep import devserver, processes
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from tests.kubernetes import rights
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.controlplane import (
    NODE_GRACE_S,
    SCHEDULER_QPS,
    ClusterAccess,
    ControlPlane,
    until_pods_can_be_created,
)
from tests.testbed.machines import Machines
from workflows import options

NAMESPACE = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Its API with all rights, its machines, and workers with the rights of deploy/kubernetes."""

    access: ClusterAccess
    api: Api
    machines: Machines
    client: Client
    workers: list[WorkerProcess]

    async def submit(self, document: Mapping[str, Any]) -> WorkflowHandle[Any, Any]:
        name = document["metadata"]["name"]
        return await self.client.start_workflow(
            names.TRAINING_JOB,
            document,
            id=name,
            task_queue=names.TASK_QUEUE,
            task_timeout=options.TASK_TIMEOUT,  # as `everstep submit` does
        )


@asynccontextmanager
async def cluster(
    folder: Path,
    *,
    workers: int = 1,
    node_grace_s: int = NODE_GRACE_S,
    scheduler_qps: int = SCHEDULER_QPS,
) -> AsyncIterator[Cluster]:
    """One without nodes, whose workers have started. Nothing of it is left afterwards."""
    control_plane = await ControlPlane.start(
        folder / "control-plane", node_grace_s=node_grace_s, scheduler_qps=scheduler_qps
    )
    started: list[WorkerProcess] = []
    machines: Machines | None = None
    try:
        access = control_plane.access
        machines = await Machines.start(access, folder / "machines")
        server = await devserver.start(folder)
        client = await Client.connect(server.address, data_converter=DATA_CONVERTER)
        async with access.api() as api:
            await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            await until_pods_can_be_created(api, NAMESPACE)
            await rights.grant(api, NAMESPACE)
            kubeconfig = await rights.kubeconfig(access, api, NAMESPACE, folder / "kubeconfig")
            for number in range(workers):
                worker = WorkerProcess(
                    address=server.address,
                    namespace="default",
                    home=folder / f"worker-{number}",
                    cluster="pods",
                    backend="kubernetes",
                    env={
                        "EVERSTEP_KUBECONFIG": kubeconfig,
                        "EVERSTEP_KUBE_NAMESPACE": NAMESPACE,
                        "MALLOC_ARENA_MAX": "2",  # as in deploy/kubernetes
                    },
                )
                started.append(await worker.start())
            yield Cluster(access=access, api=api, machines=machines, client=client, workers=started)
    finally:
        for worker in started:
            worker.kill9()
        if machines is not None:
            machines.stop()
        control_plane.kill()
        processes.end_all()


@asynccontextmanager
async def own_folder() -> AsyncIterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def document(name: str, **spec: Any) -> dict[str, Any]:
    """Of a job of this cluster."""
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"cluster": "pods", **spec},
    }
