"""A node is lost with all its memory: its ranks go on from the copies that another node's agent holds.

Only real agents show that a copy is there in time, and that a new pod fetches it before its ranks start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.agents.client.link import request_once, unix_link
from everstep.protocol import wire
from tests.support.patience import HUNG_S
from tests.support.rehearsal import Handle, Rehearsal, records

TRAIN = """
import os, pickle, time
from everstep.train import run
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def made_by(other):
    try:
        with open(f"steps-{other}") as file:
            return int(file.read().split()[-1])
    except (OSError, IndexError, ValueError):
        return 0

def begins_with():
    if (restored := run.restore()) is not None:
        return restored.step, restored.state["total"]
    if (path := os.environ.get("EVERSTEP_RESUME_PATH")) is not None:
        with open(path, "rb") as file:
            return pickle.load(file)
    return 0, 0

def save(step, total):
    with open(f"ckpt/step_{step}.pkl.part", "wb") as file:
        pickle.dump((step, total), file)
    os.rename(file.name, f"ckpt/step_{step}.pkl")

def train():
    step, total = begins_with()
    with open(f"steps-{rank}", "a") as made:
        while not os.path.exists("end"):
            time.sleep(0.1)
            if os.path.exists("stand"):
                continue
            step += 1
            total += step
            run.step(step)
            assert run.snapshot(step, {"total": total, "weights": bytearray(1_000_000)})
            print(step, file=made, flush=True)
            if rank == 0 and step % 20 == 0:
                save(step, total)
            # As a collective operation does: no rank is more than one step ahead of another.
            while min(map(made_by, range(world))) < step and not os.path.exists("end"):
                time.sleep(0.002)
    print("total", total - step * (step + 1) // 2, flush=True)

def save_snapshot(step, state):
    if rank == 0:
        save(step, state["total"])

if __name__ == "__main__":
    train()
"""
NODES, RANKS = 2, 4


def document(folder: Path) -> dict[str, Any]:
    (folder / "ckpt").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "copies"},
        "spec": {
            "nodes": NODES,
            "processes_per_node": RANKS // NODES,
            "command": [sys.executable, "train.py"],
            "workdir": str(folder),
            "checkpoints": {"path": str(folder / "ckpt")},
            "limits": {"spare_s": 30},
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


async def stand(r: Rehearsal, folder: Path) -> None:
    """Have all ranks stand still, until the agent of another pod has a copy of what each has kept last.

    Otherwise a copy that lags, as with busy processors, costs more than a step.
    """
    (folder / "stand").touch()
    async with asyncio.timeout(HUNG_S):
        copies: set[tuple[int, int]] = set()
        while not {(rank, made(folder, rank)[-1]) for rank in range(RANKS)} <= copies:
            for pod in r.pods("copies"):
                state = await request_once(unix_link(pod.folder.path), "GET", wire.STATE)
                copies |= {(one["rank"], one["step"]) for one in state["copies"]}


def go_on(folder: Path) -> None:
    (folder / "stand").unlink()


def node_of(r: Rehearsal, slot: int) -> str:
    return next(pod.node for pod in r.pods("copies") if pod.slot == slot)


async def ended(r: Rehearsal, job: Handle, folder: Path) -> dict[str, Any]:
    """The report of the job once its ranks have ended well, with a sum that no state was lost for."""
    (folder / "end").touch()
    report = await r.report(job)
    logs = r.logs(generation=r.newest("copies"), job="copies")
    assert [log.read_text().splitlines()[-1] for log in logs] == ["total 0"] * RANKS
    assert report["status"] == "Completed"
    return report


@pytest.mark.long
async def test_a_lost_node_costs_one_step(tmp_path: Path) -> None:
    """The second node, then the first one, whose copies the new pod of the second one holds by then."""
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        job = await r.submit(document(folder))
        for slot in (1, 0):
            await steps_after(r, folder, 10)
            await stand(r, folder)
            await r.fault(f"node-down {node_of(r, slot)}")
            go_on(folder)
        await steps_after(r, folder, 10)
        report = await ended(r, job, folder)
    assert [record["resume_from"] for record in records(report)] == ["neighbour"] * 2
    for rank in range(RANKS):
        steps = made(folder, rank)
        assert len(steps) - len(set(steps)) <= 2
        # A rank may be killed after its snapshot and before it prints the step.
        assert len({*range(1, max(steps))} - set(steps)) <= 2


@pytest.mark.long
async def test_with_both_nodes_lost_the_checkpoint_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        job = await r.submit(document(folder))
        await steps_after(r, folder, 30)
        nodes = [node_of(r, slot) for slot in range(NODES)]
        await asyncio.gather(*(r.fault(f"node-down {node}") for node in nodes))
        await steps_after(r, folder, 5)
        report = await ended(r, job, folder)
    last = records(report)[-1]
    assert (last["resume_from"], last["resume_step"]) == ("checkpoint", 20)


@pytest.mark.long
async def test_a_copy_that_is_lost_before_it_was_fetched_leaves_the_checkpoint(
    tmp_path: Path,
) -> None:
    """The agent with the copy dies once the new pod is there: the next start chooses again."""
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        job = await r.submit(document(folder))
        await steps_after(r, folder, 30)
        holder = next(pod for pod in r.pods("copies") if pod.slot == 0).agent()
        assert holder is not None
        generation = r.newest("copies") + 1
        await r.fault(f"node-down {node_of(r, 1)}")
        await r.until(lambda: (r.books().job("copies").placed or 0) >= generation, "the new pod")
        os.kill(holder, signal.SIGKILL)
        await steps_after(r, folder, 5)
        report = await ended(r, job, folder)
    last = records(report)[-1]
    assert (last["recover_result"], last["resume_from"]) == ("success", "checkpoint")


@pytest.mark.long
async def test_a_worker_that_dies_at_any_step_of_it_leaves_one_start(tmp_path: Path) -> None:
    """Killed once the node is lost, once the new pod is placed, once the fence is written."""
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        job = await r.submit(document(folder))
        await steps_after(r, folder, 10)
        generation = r.newest("copies") + 1
        await stand(r, folder)
        await r.fault(f"node-down {node_of(r, 1)}")
        go_on(folder)
        for field in ("newest", "placed", "fenced"):
            await r.until(
                lambda: (getattr(r.books().job("copies"), field) or 0) >= generation,  # noqa: B023  # called at once
                field,
            )
            r.worker.kill9()
            await r.worker.start()
        await steps_after(r, folder, 10)
        report = await ended(r, job, folder)
    (record,) = records(report)
    assert record["resume_from"] == "neighbour"
    assert record["lost_steps"] <= 1
