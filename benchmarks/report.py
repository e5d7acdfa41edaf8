"""What `everstep report ID` takes for a job with many restarts: the whole command, against a real server.

A job remembers its newest 50 restarts; the others are read from the rows of its Recoveries. Fake cluster.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import many_local_jobs
from tests.support.devserver import DevServer
from tests.support.stage import StageOfProcesses, document

JOB = "bench"
GOAL_S, GOAL_MB = 2.0, 2.0
RUNS = 7
FIRST_S, EVERY_S = 35, 40
LIMIT_S = 1_200.0
PARTS = ("time", "of a processor: the command", "of a processor: the server")
SCRIPT = Path(sys.executable).with_name("everstep")


async def job_with_restarts(stage: StageOfProcesses, pods: int, restarts: int) -> None:
    """A job that has crashed so many times, each time after progress."""
    for n in range(restarts):
        await stage.admin.fault(f"at {FIRST_S + n * EVERY_S}s kill {JOB} {n % pods} exit 1")
    steps = (restarts + 2) * EVERY_S
    job = await stage.submit(document(JOB, nodes=pods, env={"STEPS": str(steps)}))
    report = await asyncio.wait_for(job.result(), LIMIT_S)
    assert report["status"] == "Completed", report["reason"]


def timed(env: dict[str, str], target: Path, server: int) -> tuple[float, float, float]:
    """Time of one report, and the processor time of the command and of the server."""
    before, used, served = time.perf_counter(), os.times(), many_local_jobs.used([server])[0]
    command = [str(SCRIPT), "report", JOB, "-o", str(target)]
    subprocess.run(command, env=env, check=True, timeout=120, stdout=subprocess.DEVNULL)
    took, now = time.perf_counter() - before, os.times()
    user, system = (
        now.children_user - used.children_user,
        now.children_system - used.children_system,
    )
    return took, user + system, many_local_jobs.used([server])[0] - served


async def measured(server: DevServer, pods: int, restarts: int) -> None:
    namespace = await server.new_namespace("bench")
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        home = Path(folder)
        async with StageOfProcesses(server, namespace, home, nodes=pods + 2) as stage:
            await job_with_restarts(stage, pods, restarts)
        env = {
            **os.environ,
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": namespace,
            "EVERSTEP_HOME": str(home / "home"),
        }
        target = home / "report.html"
        runs = [await asyncio.to_thread(timed, env, target, server.pid) for _ in range(RUNS)]
        size_mb = target.stat().st_size / 1e6
    print(f"{pods} pods, {restarts} restarts, {RUNS} runs, load {os.getloadavg()[0]:.1f}")
    for what, times in zip(PARTS, zip(*runs, strict=True), strict=True):
        middle, least, most = statistics.median(times), min(times), max(times)
        print(f"  {what}  {middle:.2f} s (min {least:.2f}, max {most:.2f})")
    print(f"  goal for the time  {GOAL_S:g} s, on a machine with nothing else to do")
    print(f"  size  {size_mb:.2f} MB, goal {GOAL_MB:g}", flush=True)


async def main(pods: int, restarts: int) -> None:
    async with await DevServer.start() as server:
        await measured(server, pods, restarts)


if __name__ == "__main__":
    words = sys.argv[1:] or ["4", "500"]
    asyncio.run(main(*map(int, words)))
