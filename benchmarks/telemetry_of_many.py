"""What metrics, traces and structured logs cost a worker of many healthy jobs: two workers beside each other.

Each has as many jobs of its own on one server. One has everything on (a page that is scraped every 5 s,
metrics and traces to a collector over gRPC, logs as JSON), the other nothing, and they take turns. Both are
measured in the same seconds, so that what else the machine does weighs on both. In points of a core.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import many_local_jobs as many
from everstep.backends.local.clearing import end_all
from everstep.core import names
from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.workerproc import WorkerProcess
from tests.telemetry.receiver import receiver, scrape

JOBS = 100  # of each worker
TURNS = 6
SETTLES_S, WATCHED_S, SCRAPED_S = 15.0, 20.0, 5.0
START_S = 900.0
GOAL_POINTS, GOAL_JOBS = 3.0, 200


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs with a state directory and a namespace of their own; their worker is replaced each turn."""

    server: DevServer
    namespace: str
    home: Path

    def worker(self, env: Mapping[str, str]) -> WorkerProcess:
        return WorkerProcess(
            address=self.server.address,
            namespace=self.namespace,
            home=self.home,
            backend="local",
            env={"EVERSTEP_ORPHAN_S": "600", "EVERSTEP_ALLOW_OTHER_USERS": "true", **env},
        )

    async def start_jobs(self, jobs: int) -> None:
        client = await self.server.connect(self.namespace)
        for name in (f"many-{number}" for number in range(jobs)):
            await client.start_workflow(
                names.TRAINING_JOB, many.document(name), id=name, task_queue=names.TASK_QUEUE
            )
        running = f"WorkflowType = '{names.TRAINING_JOB}' AND TrainState = 'running'"
        async with asyncio.timeout(START_S):
            while True:
                if (await client.count_workflows(running)).count >= jobs:
                    return
                await asyncio.sleep(1.0)


async def scraping(address: str) -> None:
    while True:
        await scrape(address)
        await asyncio.sleep(SCRAPED_S)


async def watched(workers: tuple[WorkerProcess, ...], address: str) -> list[float]:
    """Points of a core that each worker took, once both have taken over their jobs."""
    await asyncio.sleep(SETTLES_S)
    scraper = asyncio.create_task(scraping(address))
    before = [many.used([worker.pid])[0] for worker in workers]
    await asyncio.sleep(WATCHED_S)
    after = [many.used([worker.pid])[0] for worker in workers]
    scraper.cancel()
    return [100 * (late - early) / WATCHED_S for early, late in zip(before, after, strict=True)]


async def measured(groups: tuple[Group, Group], jobs: int) -> None:
    first = [group.worker({}) for group in groups]
    await asyncio.gather(*(worker.start() for worker in first))
    await asyncio.gather(*(group.start_jobs(jobs) for group in groups))
    await asyncio.gather(*(worker.terminate() for worker in first))
    address = f"127.0.0.1:{free_port()}"
    print(f"two workers of {jobs} healthy jobs, points of a core over {WATCHED_S:g} s", flush=True)
    differences = []
    async with receiver() as received:
        on = {
            "EVERSTEP_METRICS_ADDRESS": address,
            "EVERSTEP_LOG_FORMAT": "json",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{received.port}",
        }
        for turn in range(TURNS):
            has_all, has_none = groups if turn % 2 else groups[::-1]
            workers = has_all.worker(on), has_none.worker({})
            await asyncio.gather(*(worker.start() for worker in workers))
            with_all, without = await watched(workers, address)
            await asyncio.gather(*(worker.terminate() for worker in workers))
            differences.append(with_all - without)
            print(
                f"  on {with_all:5.1f}  off {without:5.1f}  {differences[-1]:+5.1f}"
                f"  load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        assert {"everstep.jobs"} <= received.names, "the collector received nothing"
    middle, mean = statistics.median(differences), statistics.mean(differences)
    print(f"  {jobs} jobs: median {middle:+.1f}, mean {mean:+.1f} points")
    print(f"  goal: at most {GOAL_POINTS:+g} points with {GOAL_JOBS} jobs")


async def main(jobs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        homes = [Path(folder) / name for name in ("one", "two")]
        try:
            async with await DevServer.start() as server:
                one, two = [
                    Group(server, await server.new_namespace("bench"), home) for home in homes
                ]
                await measured((one, two), jobs)
        finally:
            for home in homes:
                end_all(home)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else JOBS))
