"""What `everstep report ID` takes for a job with many restarts: the whole command, against a real server.

A job remembers its newest 50 restarts; the others are read from the rows of its Recoveries. The job runs
once, on a fake cluster, which takes minutes: what its server has of it stays in the user's cache until its
folder there is removed. The report is made from a copy, by a server without any worker.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from benchmarks import many_local_jobs
from tests.support.devserver import DevServer
from tests.support.stage import StageOfProcesses, document

DATABASE, NAMESPACE = "temporal.db", "namespace"
KEPT = timedelta(days=365)

JOB = "bench"
GOAL_S, GOAL_MB = 2.0, 2.0
RUNS = 7
FIRST_S, EVERY_S = 35, 40
LIMIT_S = 1_200.0
FORMATS = ("html", "json", "md")
SCRIPT = Path(sys.executable).with_name("everstep")


async def job_with_restarts(stage: StageOfProcesses, pods: int, restarts: int) -> None:
    """A job that has crashed so many times, each time after progress."""
    for n in range(restarts):
        await stage.admin.fault(f"at {FIRST_S + n * EVERY_S}s kill {JOB} {n % pods} exit 1")
    steps = (restarts + 2) * EVERY_S
    job = await stage.submit(document(JOB, nodes=pods, env={"STEPS": str(steps)}))
    report = await asyncio.wait_for(job.result(), LIMIT_S)
    assert report["status"] == "Completed", report["reason"]


def timed(env: dict[str, str], target: Path, server: int) -> Costs:
    """One report by the whole command."""
    before, used, served = time.perf_counter(), os.times(), many_local_jobs.used([server])[0]
    command = [str(SCRIPT), "report", JOB, "-o", str(target)]
    subprocess.run(command, env=env, check=True, timeout=120, stdout=subprocess.DEVNULL)
    took, now = time.perf_counter() - before, os.times()
    user, system = (
        now.children_user - used.children_user,
        now.children_system - used.children_system,
    )
    return Costs(took, user + system, many_local_jobs.used([server])[0] - served)


def recording(pods: int, restarts: int) -> Path:
    """The folder of the job's database."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "everstep" / "benchmarks" / f"{pods}-pods-{restarts}-restarts"


async def record(target: Path, pods: int, restarts: int) -> None:
    """Run the job and keep what its server has of it. A run that is ended early leaves nothing."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        home = Path(folder)
        (kept := home / "kept").mkdir()
        async with await DevServer.start(db_file=kept / DATABASE) as server:
            namespace = await server.new_namespace("bench", kept_for=KEPT)
            async with StageOfProcesses(server, namespace, home, nodes=pods + 2) as stage:
                await job_with_restarts(stage, pods, restarts)
        (kept / NAMESPACE).write_text(namespace)
        bring(kept, target)
    print(f"the job ran {time.perf_counter() - began:.0f} s; it is kept in {target}", flush=True)


def bring(folder: Path, target: Path) -> None:
    """A copy of the folder, whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    arriving = Path(tempfile.mkdtemp(prefix=".arriving-", dir=target.parent))
    shutil.copytree(folder, arriving, dirs_exist_ok=True)
    arriving.rename(target)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one report, in seconds."""

    time: float
    command: float
    server: float


async def measured(kept: Path, format_: str) -> tuple[list[Costs], int]:
    """The costs of each report, and the size of the page in bytes."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        copy = Path(shutil.copytree(kept, Path(folder, "kept")))
        async with await DevServer.start(db_file=copy / DATABASE) as server:
            env = {
                **os.environ,
                "TEMPORAL_ADDRESS": server.address,
                "TEMPORAL_NAMESPACE": (kept / NAMESPACE).read_text(),
                "EVERSTEP_HOME": str(copy / "home"),
            }
            target = copy / f"report.{format_}"
            await asyncio.to_thread(timed, env, target, server.pid)  # the server's first answers
            runs = [await asyncio.to_thread(timed, env, target, server.pid) for _ in range(RUNS)]
            return runs, target.stat().st_size


def line(what: str, times: Sequence[float]) -> str:
    return (
        f"  {what:34} {statistics.median(times):.2f} s (min {min(times):.2f}, max {max(times):.2f})"
    )


async def main(pods: int, restarts: int) -> None:
    kept = recording(pods, restarts)
    if not kept.exists():
        await record(kept, pods, restarts)
    for format_ in FORMATS:
        runs, size = await measured(kept, format_)
        print(
            f"{pods} pods, {restarts} restarts, as {format_}, {RUNS} runs, load {os.getloadavg()[0]:.1f}"
        )
        print(line("time", [run.time for run in runs]))
        print(line("processor: command and server", [run.command + run.server for run in runs]))
        print(line("processor: the command alone", [run.command for run in runs]))
        print(f"  size {size / 1e6:.2f} MB", flush=True)
    print(f"goals: {GOAL_S:g} s on a machine with nothing else to do, and {GOAL_MB:g} MB")


if __name__ == "__main__":
    words = sys.argv[1:] or ["4", "500"]
    asyncio.run(main(*map(int, words)))
