"""What snapshots in memory cost a training, and a restart in place that goes on from them.

The state is 100 MB in each of two ranks, written after every step of half a second. A rank is killed; the
time runs from its end until every rank was started again, and on to the first step, for which the state is
restored. Nothing is imported but the train library.

Then the same with a rank on each of two nodes, whose agents hold copies for each other: a pod is lost with
all its memory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import benchmarks.support  # noqa: F401  # SIGTERM ends this as Ctrl-C does
from benchmarks.local_restart import restarted, show_line, until
from tests.support.rehearsal import Handle, Rehearsal

JOB = "bench"
TIMES, STEPS_BETWEEN = 8, 6
TRAIN = """
import os, pickle, sys, time
from everstep.train import run
restored = run.restore()
step = 0 if restored is None else restored.step
weights = bytearray(100_000_000) if restored is None else restored.state["weights"]
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])

def made_by(other):
    try:
        return int(open(f"step-{other}").read())
    except (OSError, ValueError):
        return 0

with open(f"cost-{rank}", "a") as costs:
    while True:
        time.sleep(0.5)
        step += 1
        began = time.perf_counter()
        run.step(step)
        stepped = time.perf_counter()
        assert run.snapshot(step, {"weights": pickle.PickleBuffer(weights)})
        print(stepped - began, time.perf_counter() - stepped, file=costs, flush=True)
        with open(f"step-{rank}.part", "w") as file:
            file.write(str(step))
        os.rename(f"step-{rank}.part", f"step-{rank}")
        while min(made_by(other) for other in range(world)) < step:
            time.sleep(0.001)
"""


def document(folder: Path, *, nodes: int) -> dict[str, Any]:
    level = "in_place" if nodes == 1 else "pod"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": JOB},
        "spec": {
            "nodes": nodes,
            "processes_per_node": 2 // nodes,
            "command": [sys.executable, "train.py"],
            "workdir": str(folder),
            "recovery": {"no_progress_restarts": None, "ladders": {"crash": [level]}},
        },
    }


def step_of(folder: Path, rank: int) -> int:
    path = folder / f"step-{rank}"
    return int(path.read_text()) if path.exists() else 0


async def trained(folder: Path, *, steps: int) -> None:
    """Wait until each rank has made so many steps more."""
    goal = step_of(folder, 0) + steps

    async def has_trained() -> bool:
        return min(step_of(folder, rank) for rank in (0, 1)) >= goal

    await until(has_trained)


async def lost(stage: Rehearsal, job: Handle, folder: Path, n: int, *, nodes: int) -> int:
    """Kill a rank, or with two nodes a pod, after some more steps. Returns how many steps are made twice."""
    await trained(folder, steps=STEPS_BETWEEN)
    made = step_of(folder, 1)
    last = max(stage.pods(JOB), key=lambda pod: pod.slot)
    pid = last.ranks()[1] if nodes == 1 else last.agent()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await restarted(job, n)
    records = await job.query("restarts")
    assert records[-1]["resume_from"] == ("snapshot" if nodes == 1 else "neighbour"), records[-1]
    return max(0, made - int(records[-1]["resume_step"]))


async def measure(nodes: int) -> None:
    home = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    try:
        async with Rehearsal(home / "r", nodes=nodes) as stage:
            folder = home / "job"
            job = await stage.submit(document(folder, nodes=nodes))
            twice = [await lost(stage, job, folder, n, nodes=nodes) for n in range(1, TIMES + 1)]
            await trained(folder, steps=2)
            stages = [record["stages_s"] for record in await job.query("restarts")]
            costs = [line.split() for line in (folder / "cost-0").read_text().splitlines()]
            await job.terminate()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    what = "ranks" if nodes == 1 else "pods, copied to the other one"
    print(f"100 MB in each of two {what}, {TIMES} kills, s{'median':>12}{'min':>10}{'max':>10}")
    show_line("a call of step, in ms", [1000 * float(step) for step, _ in costs])
    show_line("a call of snapshot", [float(snapshot) for _, snapshot in costs])
    share = statistics.median(float(snapshot) for _, snapshot in costs) / 0.5
    print(f"  of a step of 0.5 s: {share:.1%} (goal: 2 %)")
    show_line(
        "all but first_step",
        [sum(v or 0.0 for k, v in one.items() if k != "first_step") for one in stages],
    )
    show_line(
        "first_step (0.5 s of it)", [one["first_step"] for one in stages if one["first_step"]]
    )
    print(f"  steps made twice: {max(twice)} at most (goal: 1)")


async def main() -> None:
    for nodes in (1, 2):
        await measure(nodes)


if __name__ == "__main__":
    asyncio.run(main())
