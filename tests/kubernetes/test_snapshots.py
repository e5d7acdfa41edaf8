"""Pods of a cluster: their ranks go on from snapshots in memory, their own or those that a neighbour holds.

The train library is one file beside the script, as for an image of which Everstep is no part.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from everstep.backends.agents.client.link import tls_link
from everstep.backends.kubernetes import credentials, manifest, names
from everstep.protocol import wire
from everstep.train.build import build
from tests.kubernetes.jobs import STORAGE, processes_marked
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_rolling_upgrade import Upgrade, is_off, is_running, until_status
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.machines import Machines

TRAIN = """
import json, os, sys, time
sys.path.insert(0, "/storage")
from everstep_train import run
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.chdir("/storage")

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
        with open(path) as file:
            return tuple(json.load(file))
    return 0, 0

def save(step, state):
    if rank == 0:
        path = os.path.join(os.environ["CHECKPOINTS"], f"step-{step}.json")
        with open(path + ".part", "w") as file:
            json.dump([step, state["total"]], file)
        os.rename(path + ".part", path)

def train():
    if os.environ.get("SAVES"):
        os.makedirs(os.environ["CHECKPOINTS"], exist_ok=True)
        run.save_with(save)
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
            # As a collective operation does: no rank is more than one step ahead of another.
            while min(map(made_by, range(world))) < step and not os.path.exists("end"):
                time.sleep(0.002)
    assert total == step * (step + 1) // 2

if __name__ == "__main__":
    train()
"""
JOB = "remembers"


def submit(site: Site, *, saves: bool = False) -> None:
    build(site.storage / "everstep_train.py").chmod(0o644)
    (site.storage / "train.py").write_text(TRAIN)
    for name in ("end", "stand", "steps-0", "steps-1"):
        (site.storage / name).unlink(missing_ok=True)
    command = ["/bin/sh", "-c", f"exec /usr/bin/env python3 -I -S {STORAGE}/train.py"]
    site.submit(JOB, more={"command": command}, SAVES="yes" if saves else "")


def made(site: Site, rank: int = 0) -> list[int]:
    """The steps of a rank."""
    path = site.storage / f"steps-{rank}"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def steps_after(site: Site, steps: int) -> None:
    """Wait until the job has made that many steps more."""
    goal = len(made(site)) + steps
    await until(lambda: len(made(site)) >= goal)


async def copied(site: Site, api: Api, namespace: str, *, rank: int, at: int) -> None:
    """The agent of this slot has a copy of the newest snapshot of a rank that stands still."""
    place = f"/api/v1/namespaces/{namespace}"
    secret = credentials.read((await api.get(f"{place}/secrets/{names.secret(JOB)}"))["data"])
    pod = await api.get(f"{place}/pods/{names.pod(JOB, slot=at, generation=1)}")
    link = tls_link(
        pod["metadata"]["uid"],
        host=pod["status"]["podIP"],
        port=manifest.PORT,
        tls=credentials.client_context(secret),
        token=secret[wire.TOKEN],
    )

    async def has_copy() -> bool:
        state = await link.request("GET", wire.STATE)
        place = rank, made(site, rank)[-1]
        return place in {(one["rank"], one["step"]) for one in state["copies"]}

    try:
        await until(has_copy)
    finally:
        link.close()


async def ended(site: Site) -> list[dict[str, Any]]:
    """The records of the job once it has ended well."""
    (site.storage / "end").touch()
    await until_status(site, JOB, lambda status: status["state"] in {"completed", "failed"})
    assert site.status(JOB)["state"] == "completed", site.everstep("why", JOB)
    records: list[dict[str, Any]] = json.loads(site.everstep("restarts", JOB, "--json"))
    return records


async def test_a_killed_rank_and_a_killed_pod_cost_a_step_each(
    site: Site, worker: WorkerProcess, machines: Machines, api: Api, namespace: str
) -> None:
    """Ranks stand still before the pod is killed: a copy that lags, as with busy processors, costs more."""
    assert worker.pid
    submit(site)
    await steps_after(site, 10)
    marks = {f"EVERSTEP_JOB={JOB}".encode(), b"RANK=1"}
    for pid in processes_marked(marks, script="train.py"):
        os.kill(pid, signal.SIGKILL)
    await until_status(site, JOB, lambda status: status["restarts"] == 1 and is_running(status))
    await steps_after(site, 10)
    (site.storage / "stand").touch()
    await copied(site, api, namespace, rank=1, at=0)
    await machines.fault(
        "container-kill", namespace=namespace, pod=f"{JOB}-1-g1", container="train"
    )
    (site.storage / "stand").unlink()
    await until_status(site, JOB, lambda status: status["restarts"] == 2 and is_running(status))
    await steps_after(site, 10)
    records = await ended(site)
    assert [record["resume_from"] for record in records] == ["snapshot", "neighbour"]
    assert all(record["lost_steps"] <= 1 for record in records)
    steps = made(site)
    assert len(steps) - len(set(steps)) <= 2


async def test_drained_nodes_whose_jobs_leave_all_pods_cost_a_step_each(
    site: Site, worker: WorkerProcess, api: Api, namespace: str, machines: Machines
) -> None:
    assert worker.pid
    upgrade = Upgrade(api, namespace)
    submit(site, saves=True)
    await until_status(site, JOB, is_running)
    for node in upgrade.nodes:
        await steps_after(site, 10)
        await upgrade.drain(node)
        await until_status(site, JOB, is_off(node))
        await upgrade.cordon(node, on=False)
    await steps_after(site, 10)
    records = await ended(site)
    assert {record["resume_from"] for record in records} == {"checkpoint"}
    assert all(record["lost_steps"] <= 1 for record in records)
