"""Faults of a real job on a real Kubernetes control plane: how long until all its processes run again.

API server, scheduler and controllers run on loopback, nodes run containers as processes (tests/testbed), and
the worker has the rights of deploy/kubernetes. The job has two ranks in two pods. No image is pulled and no
network is set up. The time runs from the fault itself until the last rank of the new generation has begun;
each rank writes that time into a file. As root: `python -m benchmarks.kubernetes_restart [ROW ...]`. JobSet
beside it: `make bench-peers`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client, WorkflowHandle

from benchmarks.support import cluster
from benchmarks.support.cluster import NAMESPACE, Cluster
from tests.kubernetes.jobs import STORAGE, TRAINER, processes_marked

JOB = "bench"
RANKS = (0, 1)
WITHIN_S = 120.0
POLL_S = 0.05
AWAY_S = 10.0
Record = Mapping[str, Any]
BEGIN = f"date +%s.%N > {STORAGE}/begun/$EVERSTEP_GENERATION-$RANK"


@dataclass
class Bed:
    """A cluster, its job, and the folder that the ranks share."""

    cluster: Cluster
    job: WorkflowHandle[Any, Any]
    storage: Path
    nodes: int = 0

    async def add_node(self) -> None:
        await self.cluster.machines.add_node(f"node-{self.nodes}")
        self.nodes += 1

    async def pod(self, slot: int) -> dict[str, Any]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        selector = f"everstep.dev/slot={slot}"
        items: list[dict[str, Any]] = (await self.cluster.api.get(path, labelSelector=selector))[
            "items"
        ]
        return [one for one in items if "deletionTimestamp" not in one["metadata"]][-1]

    async def status(self) -> dict[str, Any]:
        status: dict[str, Any] = await self.job.query("status")
        return status

    async def trains(self) -> int:
        """Wait until the job runs and has saved since this call; return its generation."""
        saved = self._newest_save()

        async def has_saved() -> bool:
            runs = (await self.status())["state"] == "running"
            return runs and self._newest_save() > saved

        await until(has_saved)
        return int((await self.status())["generation"])

    def _newest_save(self) -> int:
        saves = self.storage.glob("job/checkpoints/step-*.json")
        return max((int(path.stem.partition("-")[2]) for path in saves), default=0)

    async def begun(self, *, above: int) -> float:
        """Wait for a generation above this one; return when its last rank began."""
        while True:
            for path in self.storage.glob(f"begun/*-{RANKS[0]}"):
                generation = int(path.name.partition("-")[0])
                if generation > above:
                    return max([await self._written(generation, rank) for rank in RANKS])
            await asyncio.sleep(POLL_S)

    async def _written(self, generation: int, rank: int) -> float:
        path = self.storage / "begun" / f"{generation}-{rank}"

        async def is_written() -> bool:
            return path.exists() and path.read_text().endswith("\n")

        await until(is_written)
        return float(path.read_text())


async def crash(bed: Bed) -> None:  # noqa: ARG001  # as the others
    (pid,) = processes_marked([f"EVERSTEP_JOB={JOB}".encode(), b"RANK=1"])
    os.kill(pid, signal.SIGKILL)


async def kill_container(bed: Bed) -> None:
    name = (await bed.pod(1))["metadata"]["name"]
    await bed.cluster.machines.fault("container-kill", namespace=NAMESPACE, pod=name)


async def remove_node(bed: Bed) -> None:
    await bed.add_node()
    await bed.cluster.machines.remove_node((await bed.pod(1))["spec"]["nodeName"])


async def crash_node(bed: Bed) -> None:
    await bed.add_node()
    await bed.cluster.machines.fault("node-crash", node=(await bed.pod(1))["spec"]["nodeName"])


async def kill_container_and_worker(bed: Bed) -> None:
    before = (await bed.status())["generation"]
    await kill_container(bed)

    async def recovers() -> bool:
        status = await bed.status()
        return bool(status["state"] == "recovering" or status["generation"] > before)

    await until(recovers)
    bed.cluster.workers[0].kill9()
    if len(bed.cluster.workers) > 1:
        return
    await asyncio.sleep(AWAY_S)
    await bed.cluster.workers[0].start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of fault, as often as `times`."""

    title: str
    strike: Callable[[Bed], Coroutine[Any, Any, None]]
    times: int
    goal: str
    level: str = "pod"
    workers: int = 1


ROWS = {
    "crash": Row(
        title="SIGKILL of one of two ranks, in place",
        strike=crash,
        times=10,
        goal="local's and 0.1 s",
        level="in_place",
    ),
    "container": Row(
        title="SIGKILL of a container, its pod is replaced",
        strike=kill_container,
        times=10,
        goal="0.6 s",
    ),
    "node": Row(
        title="a node and its object are gone",
        strike=remove_node,
        times=5,
        goal="3 s after the proof",
    ),
    "silent": Row(
        title="a node crashes, nobody helps (grace 6 s, fence 35 s)",
        strike=crash_node,
        times=2,
        goal="3 s after the fence holds by time",
    ),
    "worker": Row(
        title="SIGKILL of a container and of the worker, which is back after 10 s",
        strike=kill_container_and_worker,
        times=4,
        goal="12 s",
    ),
    "standby": Row(
        title="the same, a second worker stands by",
        strike=kill_container_and_worker,
        times=4,
        goal="5 s",
        workers=2,
    ),
}


def document(storage: Path, row: Row) -> dict[str, Any]:
    command = f"{BEGIN}; exec /usr/bin/env python3 {STORAGE}/trainer.py"
    mount = {"name": "storage", "mountPath": STORAGE}
    return cluster.document(
        JOB,
        nodes=len(RANKS),
        image="machine",
        command=["/bin/sh", "-c", command],
        env={
            "CONTROL": f"{STORAGE}/control",
            "CHECKPOINTS": f"{STORAGE}/job/checkpoints",
            "STEPS": "1000000",
            "STEP_S": "0.05",
        },
        model_dir=f"{STORAGE}/job",
        checkpoints={"path": f"{STORAGE}/job/checkpoints"},
        # The same level each time: as a rule what comes again gets a coarser one.
        recovery={
            "no_progress_restarts": None,
            "ladders": {"crash": [row.level], "node": [row.level]},
        },
        pod_template={
            "spec": {
                "volumes": [{"name": "storage", "hostPath": {"path": str(storage)}}],
                "containers": [{"name": "train", "volumeMounts": [mount]}],
            }
        },
    )


@asynccontextmanager
async def bed_of(folder: Path, row: Row) -> AsyncIterator[Bed]:
    storage = folder / "storage"
    for name in ("control", "begun"):
        (storage / name).mkdir(parents=True)
    for path in (folder, storage, storage / "control", storage / "begun"):
        path.chmod(0o777)  # ranks are another user
    shutil.copy(TRAINER, storage)
    async with cluster.cluster(folder, workers=row.workers) as found:
        job = await found.submit(document(storage, row))
        bed = Bed(cluster=found, job=job, storage=storage)
        for _ in range(len(RANKS) + 1):
            await bed.add_node()
        yield bed


async def time_outs(client: Client) -> Counter[str]:
    """The tasks and activities that timed out, as after a killed worker."""
    found: Counter[str] = Counter()
    async for run in client.list_workflows():
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        async for event in handle.fetch_history_events():
            if event.HasField("workflow_task_timed_out_event_attributes"):
                kind = event.workflow_task_timed_out_event_attributes.timeout_type
                found[f"workflow task of {run.workflow_type} ({TimeoutType.Name(kind)})"] += 1
            failure = event.activity_task_started_event_attributes.last_failure
            if failure.HasField("timeout_failure_info"):
                found[f"activity of {run.workflow_type} ({failure.message})"] += 1
    return found


async def measured(row: Row) -> tuple[list[float], list[Record], Counter[str]]:
    """Seconds of each fault, the record of each restart, and what timed out."""
    took: list[float] = []
    async with cluster.own_folder() as folder, bed_of(folder, row) as bed:
        for _ in range(row.times):
            generation = await bed.trains()
            began = time.time()
            striking = asyncio.create_task(row.strike(bed))
            async with asyncio.timeout(WITHIN_S):
                took.append(await bed.begun(above=generation) - began)
            await striking
            if row.workers > 1:
                await bed.cluster.workers[0].start()
        await bed.trains()
        return took, await bed.job.query("restarts"), await time_outs(bed.cluster.client)


def show(records: Sequence[Record]) -> None:
    levels = Counter(record["level"] for record in records)
    print("  levels:", ", ".join(f"{number} {level}" for level, number in levels.items()))
    stages = [record["stages_s"] for record in records]
    for name in stages[0]:
        values = [each.get(name) or 0.0 for each in stages]
        if any(values):
            middle = f"{statistics.median(values):9.3f}{min(values):9.3f}{max(values):9.3f}"
            print(f"  {name:66}{middle}")


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await claim():
                return
            await asyncio.sleep(POLL_S)


def main(wanted: Sequence[str]) -> None:
    print(f"{'s':68}{'median':>9}{'min':>9}{'max':>9}{'times':>6}{'load':>7}", flush=True)
    for name in wanted or ROWS:
        row = ROWS[name]
        took, records, lost = asyncio.run(measured(row))
        median, load = statistics.median(took), os.getloadavg()[0]
        print(
            f"{row.title:68}{median:9.3f}{min(took):9.3f}{max(took):9.3f}{len(took):6}{load:7.1f}"
        )
        show(records)
        for what, number in lost.items():
            print(f"  timed out: {number} {what}")
        print(f"  goal: {row.goal}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
