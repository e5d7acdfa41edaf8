"""Many hollow pods on a real Kubernetes control plane: what a worker costs that watches them.

Pods of hollow nodes have no process; one server answers for all agents, over TLS, with long polls and a step
a second each. API server, scheduler and controllers are real, and so is the worker with the rights of
deploy/kubernetes. As root: `python -m benchmarks.kubernetes_many [PODS JOBS ...]`, else 1000 1 and 8 100.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle

from benchmarks.support import cluster
from everstep.cli.jobs.watching import ENDED

GRACE_S, LEASE_S = 900, 10.0  # as kubelets renew them: one of 15 s is a fault of its node
SETTLES_S, HEALTHY_S = 15.0, 60.0
WITHIN_S = 300.0
LOOK_S = 0.5


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
    async with (
        cluster.own_folder() as folder,
        cluster.cluster(folder, node_grace_s=GRACE_S) as found,
    ):
        # Slots of a job share no node, jobs do.
        for number in range(pods):
            await found.machines.add_node(f"node-{number}", is_hollow=True, lease_every_s=LEASE_S)
        (worker,) = found.workers
        began, (before, _) = time.monotonic(), used(worker.pid)
        handles = []
        for number in range(jobs):
            document = cluster.document(
                f"many-{number}", nodes=pods, image="hollow", command=["sleep", "infinity"]
            )
            handles.append(await found.submit(document))
        async with asyncio.timeout(WITHIN_S):
            for handle in handles:
                await until_it_runs(handle)
        launch_s = time.monotonic() - began
        launched, _ = used(worker.pid)
        await asyncio.sleep(SETTLES_S)  # each first step is news of its own
        at, (settled, _) = time.monotonic(), used(worker.pid)
        await asyncio.sleep(HEALTHY_S)
        after, resident = used(worker.pid)
        share = 100 * (after - settled) / (time.monotonic() - at)
        states = [(await handle.query("status"))["state"] for handle in handles]
        healthy = f"{states.count('running')} of {jobs} run"
        print(
            f"{jobs:5} jobs of {pods:5} pods: launch {launch_s:6.1f} s with {launched - before:5.1f} s of "
            f"the worker's processor, then {share:5.1f} % of a core, {resident:5.0f} MB; {healthy}; "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def main(words: Sequence[str]) -> None:
    sizes = list(map(int, words)) or [1000, 1, 8, 100]
    for pods, jobs in zip(sizes[::2], sizes[1::2], strict=True):
        asyncio.run(measured(pods, jobs))


if __name__ == "__main__":
    main(sys.argv[1:])
