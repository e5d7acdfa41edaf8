"""Ranks that keep snapshots go on from the step at which they were killed, without any checkpoint.

Only a real agent holds memory that outlives a process that is really killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.rehearsal import Rehearsal, records

TRAIN = """
import os, time
from everstep.train import run
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def made_by(other):
    try:
        with open(f"steps-{other}") as file:
            return int(file.read().split()[-1])
    except (OSError, IndexError, ValueError):
        return 0

def wait_for_others(step):
    # As a collective operation does: no rank is more than one step ahead of another.
    while min(map(made_by, range(world))) < step and not os.path.exists("end"):
        time.sleep(0.002)

restored = run.restore()
step, total = (0, 0) if restored is None else (restored.step, restored.state["total"])
with open(f"steps-{os.environ['RANK']}", "a") as made:
    while not os.path.exists("end"):
        step += 1
        total += step
        run.step(step)
        run.snapshot(step, {"total": total, "weights": bytearray(1_000_000)})
        print(step, file=made, flush=True)
        wait_for_others(step)
print("total", total - step * (step + 1) // 2, flush=True)
"""
RANKS = 2


def document(folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "snapshots"},
        "spec": {
            "nodes": 1,
            "processes_per_node": RANKS,
            "command": [sys.executable, "train.py"],
            "workdir": str(folder),
        },
    }


def made(folder: Path, rank: int) -> list[int]:
    path = folder / f"steps-{rank}"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def steps_after(r: Rehearsal, folder: Path, steps: int) -> None:
    """Wait until every rank has made that many steps more."""
    goals = [len(made(folder, rank)) + steps for rank in range(RANKS)]
    await r.until(
        lambda: all(len(made(folder, rank)) >= goals[rank] for rank in range(RANKS)), "more steps"
    )


@pytest.mark.long
async def test_ranks_go_on_from_the_step_at_which_one_was_killed(tmp_path: Path) -> None:
    """Rank 0, rank 1, a rank while no worker lives, a pause: at most one step is made twice each time."""
    folder, file = tmp_path / "job", tmp_path / "snapshots.yaml"
    file.write_text(yaml.safe_dump(document(folder)))
    async with Rehearsal(tmp_path / "r", nodes=1) as r:
        job = await r.submit(file)
        for victim in (0, 1):
            await steps_after(r, folder, 20)
            os.kill(r.pods("snapshots")[0].ranks()[victim], signal.SIGKILL)
        await steps_after(r, folder, 20)
        r.worker.kill9()
        os.kill(r.pods("snapshots")[0].ranks()[1], signal.SIGKILL)
        await r.worker.start()
        await steps_after(r, folder, 20)
        await job.execute_update("pause", {"reason": "for this test"})
        await r.until(lambda: not r.pods("snapshots")[0].ranks(), "the end of the ranks")
        await r.worker.restart()  # it reports the paused job anew
        await job.execute_update("resume", {})
        await steps_after(r, folder, 20)
        (folder / "end").touch()
        report = await r.report(job)
        logs = r.logs(generation=r.newest("snapshots"), job="snapshots")
        ends = [log.read_text().splitlines()[-1] for log in logs]
    assert report["status"] == "Completed"
    stops = len(records(report))
    assert [record["resume_from"] for record in records(report)] == ["snapshot"] * stops
    for rank in range(RANKS):
        steps = made(folder, rank)
        assert len(steps) - len(set(steps)) <= stops
        # A rank may be killed after its snapshot and before it prints the step.
        assert len({*range(1, max(steps))} - set(steps)) <= stops
    assert ends == ["total 0"] * RANKS
