"""Many hollow pods on a real Kubernetes control plane: what a worker costs that watches them.

Pods of hollow nodes have no process; one server answers for all agents, over TLS, with long polls and a step
a second each. API server, scheduler and controllers are real, and so is the worker with the rights of
deploy/kubernetes. As root: `python -m benchmarks.kubernetes_many [PODS JOBS ...]`, else 1000 1 and 8 100.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from everstep import devserver, processes
from everstep.cli.jobs.watching import ENDED
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from tests.kubernetes import rights
from tests.support.workerproc import WorkerProcess
from tests.testbed.controlplane import ControlPlane, until_pods_can_be_created
from tests.testbed.machines import Machines

NAMESPACE = "bench"
GRACE_S, LEASE_S = 900, 300.0  # leases of a thousand nodes are a load of their own
HEALTHY_S = 60.0
WITHIN_S = 300.0
LOOK_S = 0.5


def document(name: str, pods: int) -> dict[str, Any]:
    spec = {
        "cluster": "pods",
        "nodes": pods,
        "image": "hollow",
        "command": ["sleep", "infinity"],
    }
    metadata = {"name": name}
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": spec,
    }


def used(pid: int) -> tuple[float, float]:
    """Processor seconds of a process, and its memory in MB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return seconds, resident / 1024


async def until_it_runs(handle: WorkflowHandle[Any, Any]) -> None:
    while True:
        status: dict[str, Any] = await handle.query("status")
        if status["state"] in {"running", *ENDED}:
            return
        await asyncio.sleep(LOOK_S)


async def measured(pods: int, jobs: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    control_plane = await ControlPlane.start(folder / "control-plane", node_grace_s=GRACE_S)
    machines: Machines | None = None
    worker: WorkerProcess | None = None
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
        # Slots of a job share no node, jobs do.
        for number in range(pods):
            await machines.add_node(f"node-{number}", is_hollow=True, lease_every_s=LEASE_S)
        worker = await WorkerProcess(
            address=server.address,
            namespace="default",
            home=folder / "worker",
            cluster="pods",
            backend="kubernetes",
            env={"EVERSTEP_KUBECONFIG": kubeconfig, "EVERSTEP_KUBE_NAMESPACE": NAMESPACE},
        ).start()
        began = time.monotonic()
        handles = [
            await client.start_workflow(
                names.TRAINING_JOB,
                document(f"many-{number}", pods),
                id=f"many-{number}",
                task_queue=names.TASK_QUEUE,
            )
            for number in range(jobs)
        ]
        async with asyncio.timeout(WITHIN_S):
            for handle in handles:
                await until_it_runs(handle)
        launch_s = time.monotonic() - began
        before, _ = used(worker.pid)
        at = time.monotonic()
        await asyncio.sleep(HEALTHY_S)
        after, resident = used(worker.pid)
        share = 100 * (after - before) / (time.monotonic() - at)
        states = [(await handle.query("status"))["state"] for handle in handles]
        healthy = f"{states.count('running')} of {jobs} run"
        print(
            f"{jobs:5} jobs of {pods:5} pods: launch {launch_s:6.1f} s, worker {share:5.1f} % of a "
            f"core, {resident:5.0f} MB; {healthy}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    finally:
        if worker is not None:
            worker.kill9()
        if machines is not None:
            machines.stop()
        control_plane.kill()
        processes.end_all()
        shutil.rmtree(folder, ignore_errors=True)


def main(words: Sequence[str]) -> None:
    sizes = list(map(int, words)) or [1000, 1, 8, 100]
    for pods, jobs in zip(sizes[::2], sizes[1::2], strict=True):
        asyncio.run(measured(pods, jobs))


if __name__ == "__main__":
    main(sys.argv[1:])
