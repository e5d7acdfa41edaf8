"""Many hollow pods on a real Kubernetes control plane: what a worker costs that watches them.

Pods of hollow nodes have no process; one server answers for all agents, over TLS, with long polls and a step
a second each. API server, scheduler and controllers are real, and so is the worker with the rights of
deploy/kubernetes. As root: `python -m benchmarks.kubernetes_many [PODS JOBS ...]`, else 1000 1 and 8 100.
With `--scheduler-qps 200` the scheduler may send more requests than by default.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle

from benchmarks.support import cluster
from everstep.backends.kubernetes import gangs
from everstep.client.jobs.glances import ENDED
from tests.testbed.api import UNREACHABLE, Api, Json
from tests.testbed.controlplane import SCHEDULER_QPS

GRACE_S, LEASE_S = 900, 10.0  # as kubelets renew them: one of 15 s is a fault of its node
SETTLES_S, HEALTHY_S = 15.0, 60.0
WITHIN_S = 300.0
POLL_S = 0.5
NOT_READY = "node.kubernetes.io/not-ready"


def used(pid: int) -> tuple[float, float]:
    """Processor seconds of a process, and its memory in MB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return seconds, resident / 1024


async def until_nodes_take_pods(api: Api) -> None:
    """Wait until no node is tainted as not ready. Controllers remove the taint after a node is ready.

    Before that the scheduler finds a large gang unschedulable, says so at each of its pods, and tries again.
    """
    while True:
        nodes = (await api.get("/api/v1/nodes"))["items"]
        if not any(_is_not_ready(node) for node in nodes):
            return
        await asyncio.sleep(POLL_S)


def _is_not_ready(node: Json) -> bool:
    return any(taint["key"] == NOT_READY for taint in node["spec"].get("taints", ()))


async def until_it_runs(handle: WorkflowHandle[Any, Any]) -> None:
    while True:
        status: dict[str, Any] = await handle.query("status")
        if status["state"] in {"running", *ENDED}:
            return
        await asyncio.sleep(POLL_S)


async def state_of(api: Api, handle: WorkflowHandle[Any, Any]) -> str:
    """How far a job is that does not run yet: by its own status, its pods, their group and the nodes."""
    status: dict[str, Any] = await handle.query("status")
    beginning = (
        f"{status['state']}, {status['restarts']} restarts, waits for {status['waiting_for']}"
    )
    try:
        return f"{beginning}; {await _objects_of(api)}"
    except UNREACHABLE as error:  # also a busy API server that takes more than 30 s
        return f"{beginning}; the API server does not answer: {error!r}"


async def _objects_of(api: Api) -> str:
    core, groups = (
        f"/api/v1/namespaces/{cluster.NAMESPACE}",
        f"{gangs.API}/namespaces/{cluster.NAMESPACE}",
    )
    pods = Counter(_stage(pod) for pod in (await api.get(f"{core}/pods"))["items"])
    conditions = [
        f"{one['type']}={one['status']}: {one.get('message', '')}"
        for group in (await api.get(f"{groups}/podgroups"))["items"]
        for one in group.get("status", {}).get("conditions", ())
    ]
    nodes = (await api.get("/api/v1/nodes"))["items"]
    tainted = [node["metadata"]["name"] for node in nodes if node["spec"].get("taints")]
    return (
        f"pods: {dict(pods)}; group: {conditions}; {len(nodes)} nodes, with taints: {tainted[:5]}"
    )


def _stage(pod: Json) -> str:
    phase, node = pod["status"].get("phase", ""), pod["spec"].get("nodeName", "")
    is_deleted = "deletionTimestamp" in pod["metadata"]
    return f"{phase}{' with a node' if node else ''}{', deleted' if is_deleted else ''}"


async def measured(pods: int, jobs: int, scheduler_qps: int) -> None:
    async with (
        cluster.own_folder() as folder,
        cluster.cluster(folder, node_grace_s=GRACE_S, scheduler_qps=scheduler_qps) as found,
    ):
        # Slots of a job share no node, jobs do.
        for number in range(pods):
            await found.machines.add_node(f"node-{number}", is_hollow=True, lease_every_s=LEASE_S)
        await until_nodes_take_pods(found.api)
        (worker,) = found.workers
        began, (before, _) = time.monotonic(), used(worker.pid)
        handles = []
        for number in range(jobs):
            document = cluster.document(
                f"many-{number}", nodes=pods, image="hollow", command=["sleep", "infinity"]
            )
            handles.append(await found.submit(document))
        for handle in handles:
            try:
                async with asyncio.timeout(began + WITHIN_S - time.monotonic()):
                    await until_it_runs(handle)
            except TimeoutError:
                raise SystemExit(
                    f"after {WITHIN_S:g} s: {await state_of(found.api, handle)}"
                ) from None
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


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes_many")
    parser.add_argument(
        "sizes", metavar="PODS JOBS", type=int, nargs="*", default=[1000, 1, 8, 100]
    )
    parser.add_argument("--scheduler-qps", type=int, default=SCHEDULER_QPS)
    options = parser.parse_args(arguments)
    for pods, jobs in zip(options.sizes[::2], options.sizes[1::2], strict=True):
        asyncio.run(measured(pods, jobs, options.scheduler_qps))


if __name__ == "__main__":
    main(sys.argv[1:])
