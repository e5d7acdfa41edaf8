"""What metrics, traces and structured logs cost a worker of many healthy jobs: two workers beside each other.

Each has as many jobs of its own on one server. One has everything on (a page that is scraped every 5 s,
metrics and traces to a collector over gRPC, logs as JSON), the other nothing, and they take turns. Both are
measured in the same seconds, so that what else the machine does weighs on both. In points of a core: the mean
of the turns with its standard error, as windows of one turn have the same two processes. What each takes
to begin and to take over its jobs is printed beside it, in seconds of a processor.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
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
TURNS, WINDOWS = 8, 6
SETTLES_S = 60.0
"""Until a worker has taken over its jobs: 200 keep one busy for 20 s."""
WINDOW_S, SCRAPED_S = 10.0, 5.0
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


@dataclass(frozen=True, slots=True)
class Window:
    """Points of a core that each worker took in the same seconds."""

    with_all: float
    without: float

    @property
    def difference(self) -> float:
        return self.with_all - self.without


@dataclass(frozen=True, slots=True)
class Turn:
    """The first worker has everything on, the second nothing."""

    start_s: tuple[float, float]  # of a processor, until each had taken over its jobs
    windows: list[Window]


async def watched(workers: tuple[WorkerProcess, WorkerProcess], address: str) -> Turn:
    await asyncio.sleep(SETTLES_S)
    with_all_s, without_s = (many.used([worker.pid])[0] for worker in workers)
    scraper = asyncio.create_task(scraping(address))
    at, used_s = [], []
    for n in range(WINDOWS + 1):
        await asyncio.sleep(WINDOW_S if n else 0.0)
        at.append(time.monotonic())
        used_s.append([many.used([worker.pid])[0] for worker in workers])
    scraper.cancel()
    windows = [
        Window(*(100 * (used_s[n + 1][i] - used_s[n][i]) / (at[n + 1] - at[n]) for i in (0, 1)))
        for n in range(WINDOWS)
    ]
    return Turn((with_all_s, without_s), windows)


async def measured(groups: tuple[Group, Group], jobs: int, turn_count: int) -> None:
    first = [group.worker({}) for group in groups]
    await asyncio.gather(*(worker.start() for worker in first))
    await asyncio.gather(*(group.start_jobs(jobs) for group in groups))
    await asyncio.gather(*(worker.terminate() for worker in first))
    address = f"127.0.0.1:{free_port()}"
    print(
        f"two workers of {jobs} healthy jobs, {WINDOWS} windows of {WINDOW_S:g} s a turn",
        flush=True,
    )
    turns: list[Turn] = []
    async with receiver() as received:
        on = {
            "EVERSTEP_METRICS_ADDRESS": address,
            "EVERSTEP_LOG_FORMAT": "json",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{received.port}",
        }
        for turn in range(turn_count):
            has_all, has_none = groups if turn % 2 else groups[::-1]
            workers = has_all.worker(on), has_none.worker({})
            await asyncio.gather(*(worker.start() for worker in workers))
            turns.append(await watched(workers, address))
            await asyncio.gather(*(worker.terminate() for worker in workers))
            print(f"  {summary(turns[-1])}  load {os.getloadavg()[0]:.1f}", flush=True)
        assert {"everstep.jobs"} <= received.names, "the collector received nothing"
    print(result(turns, jobs))


def result(turns: list[Turn], jobs: int) -> str:
    """What all turns come to; at most as many times more where there are more jobs."""
    means = [statistics.mean(window.difference for window in turn.windows) for turn in turns]
    mean, error = statistics.mean(means), statistics.stdev(means) / len(means) ** 0.5
    share = GOAL_JOBS / jobs
    return (
        f"  {jobs} jobs: {mean:+.2f} points, standard error {error:.2f}\n"
        f"  {GOAL_JOBS} jobs, at most: {share * mean:+.2f}, {share * error:.2f}; goal {GOAL_POINTS:+g}"
    )


def summary(turn: Turn) -> str:
    on = statistics.mean(window.with_all for window in turn.windows)
    off = statistics.mean(window.without for window in turn.windows)
    differences = [window.difference for window in turn.windows]
    least, most = min(differences), max(differences)
    points = f"on {on:5.1f}  off {off:5.1f}  {on - off:+5.2f} ({least:+.1f} to {most:+.1f})"
    return f"{points}  start {turn.start_s[0]:.1f} and {turn.start_s[1]:.1f} s"


async def main(jobs: int = JOBS, turns: int = TURNS) -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        homes = [Path(folder) / name for name in ("one", "two")]
        try:
            async with await DevServer.start() as server:
                one, two = [
                    Group(server, await server.new_namespace("bench"), home) for home in homes
                ]
                await measured((one, two), jobs, turns)
        finally:
            for home in homes:
                end_all(home)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
