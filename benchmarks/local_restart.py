"""Faults of a real job on this machine: how long until all its processes run again.

The ranks are those of the synthetic example, the limits the defaults except where a row sets them. The time
runs from the fault itself (the exit of a rank, the last sign of life of a stopped one, a device report)
until every rank was started again. The script's own time to its first step is printed as a line of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import benchmarks.support  # noqa: F401  # SIGTERM ends this as Ctrl-C does
from tests.support.rehearsal import Handle, Rehearsal, small

WITHIN_S = 60.0
POLL_S = 0.5  # each query is work for the worker that is measured
JOB = "bench"

Record = Mapping[str, Any]
Strike = Callable[[Rehearsal, Handle], Awaitable[None]]


async def crash(stage: Rehearsal, _job: Handle) -> None:
    await stage.fault(f"kill {JOB} 1")


async def stop(stage: Rehearsal, _job: Handle) -> None:
    for pid in stage.pods(JOB)[1].ranks():
        os.kill(pid, signal.SIGSTOP)


async def crash_and_kill_the_worker(stage: Rehearsal, _job: Handle) -> None:
    before = stage.newest(JOB)
    await stage.fault(f"kill {JOB} 1")
    await stage.until(lambda: stage.newest(JOB) > before, "the Recovery")
    await stage.worker.restart()


async def break_a_device(stage: Rehearsal, job: Handle) -> None:
    index = len(await job.query("restarts")) % 8  # the same device again would get a coarser level
    await stage.fault(f"heal-takes n1 {index} 0s")
    await stage.fault(f"device n1 {index} 80E01801")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of fault, as often as `times`."""

    title: str
    strike: Strike
    times: int
    goal_s: float | None
    nodes: int = 2
    stock: bool = False  # the server has its default settings
    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] | None = None  # of a ModelArts document

    def document(self, folder: Path) -> dict[str, Any]:
        native = small(folder, JOB, nodes=self.nodes, steps=100_000, step_s=0.05, **self.spec)
        if self.annotations is None:
            return native
        metadata = {"name": JOB, "annotations": dict(self.annotations)}
        return {"kind": "job", "metadata": metadata, "everstep": native["spec"]}


IN_PLACE = {"recovery": {"no_progress_restarts": None, "ladders": {"crash": ["in_place"]}}}
HANGS = {"recovery": {"no_progress_restarts": None}, "limits": {"hang_s": 5}}
RETRIES = {"fault-tolerance/job-retry-num": "8"}

ROWS = (
    Row(title="SIGKILL of one of two ranks", strike=crash, times=10, goal_s=0.3, spec=IN_PLACE),
    Row(
        title="the same, stock settings of the server",
        strike=crash,
        times=10,
        goal_s=None,
        stock=True,
        spec=IN_PLACE,
    ),
    Row(title="SIGSTOP, hang_s: 5", strike=stop, times=3, goal_s=6.5, spec=HANGS),
    Row(
        title="SIGKILL, and of the worker in mid-recovery",
        strike=crash_and_kill_the_worker,
        times=5,
        goal_s=5.3,
        spec=IN_PLACE,
    ),
    Row(
        title="a ModelArts job of four pods, a device of one heals in 0 s",
        strike=break_a_device,
        times=8,
        goal_s=0.5,
        nodes=4,
        annotations=RETRIES,
    ),
)


async def measured(row: Row) -> list[Record]:
    folder = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    try:
        async with Rehearsal(folder, stock=row.stock) as stage:
            job = await stage.submit(row.document(folder / "job"))
            for n in range(1, row.times + 1):
                await trained(stage, job)
                await row.strike(stage, job)
                await restarted(job, n)
            await trained(stage, job)
            records: list[Record] = await job.query("restarts")
            await job.terminate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return records


async def trained(stage: Rehearsal, job: Handle) -> None:
    """Wait until all ranks run, have made a step and have saved once since this call."""
    saved = newest_save(stage.folder)

    async def has_saved() -> bool:
        status = await job.query("status")
        steps = stage.step(generation=status["generation"] or 0, job=JOB)
        runs = status["state"] == "running" and steps > 0
        return bool(runs and newest_save(stage.folder) > saved)

    await until(has_saved)


def newest_save(folder: Path) -> int:
    names = (folder / "job" / "out" / "ckpt").glob("step-*.json")
    return max((int(path.stem.partition("-")[2]) for path in names), default=0)


async def restarted(job: Handle, n: int) -> None:
    async def is_back() -> bool:
        records = await job.query("restarts")
        return len(records) >= n and records[n - 1]["recover_result"] == "success"

    await until(is_back)


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not await claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(POLL_S)


def show(row: Row, records: list[Record]) -> None:
    stages = [record["stages_s"] for record in records]
    ours = [sum(v or 0.0 for k, v in each.items() if k != "first_step") for each in stages]
    print(f"\n{row.title}, {len(records)} times, s")
    print(f"{'':28}{'median':>10}{'min':>10}{'max':>10}")
    names = [name for name in stages[0] if any(each[name] for each in stages)]
    for name in names:
        show_line(name, [each[name] or 0.0 for each in stages])
    median = show_line("all but first_step", ours)
    if row.goal_s is not None:
        met = "met" if median <= row.goal_s else "missed"
        print(f"  goal: at most {row.goal_s:g} s, {met}")


def show_line(name: str, values: list[float]) -> float:
    median = statistics.median(values)
    print(f"  {name:26}{median:10.3f}{min(values):10.3f}{max(values):10.3f}")
    return median


def main() -> None:
    for row in ROWS:
        show(row, asyncio.run(measured(row)))


if __name__ == "__main__":
    main()
