"""A device that is not well, with real processes and the worker killed: a backup pod, a last checkpoint.

Only here a real agent of a backup pod outlives the worker that made it, and a real script saves while no
worker is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.rehearsal import Rehearsal, records

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

UNWELL = "80818C06"
SCRIPT = """
import json, os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder, rank = pathlib.Path(os.environ["FOLDER"]), os.environ["RANK"]
request = pathlib.Path(os.environ["EVERSTEP_RANK_FOLDER"], "instruction.json")
step = int(os.environ.get("EVERSTEP_RESUME_STEP", 0))
while not (folder / "end").exists():
    step += 1
    print(f"step {step} loss 0", flush=True)
    time.sleep(0.05)
    if request.exists():
        (folder / f"asked-{rank}").touch()
        if rank == "0":
            time.sleep(float(os.environ["SAVE_S"]))
            unfinished = folder / "ckpt" / ".unfinished"
            unfinished.write_text(json.dumps({"step": step}))
            unfinished.rename(folder / "ckpt" / f"step-{step}.json")
        sys.exit(0)
"""


def document(folder: Path, *, strategy: str, save_s: float = 0.0, grace_s: int = 60) -> Any:
    """An AscendJob of two pods that lives until a file exists; it saves only on request."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "ckpt").mkdir()
    container = {
        "name": "ascend",
        "command": [sys.executable, str(folder / "train.py")],
        "env": [
            {"name": "FOLDER", "value": str(folder)},
            {"name": "SAVE_S", "value": str(save_s)},
        ],
        "resources": {"limits": {"huawei.com/Ascend910": 8}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": grace_s, "containers": [container]}}
    labels = {"fault-scheduling": "grace", "pod-rescheduling": "on", "subHealthyStrategy": strategy}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "demo", "labels": labels},
        "spec": {
            "replicaSpecs": {"Master": {"template": template}, "Worker": {"template": template}}
        },
        "everstep": {
            "model_dir": str(folder / "model"),
            "checkpoints": {"path": str(folder / "ckpt")},
            "progress": {"log_pattern": r"^step (?P<step>\d+) loss"},
        },
    }


async def trains(r: Rehearsal, *, generation: int, beyond: int = 3) -> None:
    await r.until(lambda: r.step(generation=generation) > beyond, f"training in g{generation}")


def node_of_the_worker(r: Rehearsal) -> str:
    return next(pod.node for pod in r.pods("demo") if pod.slot == 1)


async def ended(r: Rehearsal, job: Any, folder: Path) -> dict[str, Any]:
    """The only record of the job, once it has ended well and nothing of it is left."""
    (folder / "end").touch()
    report = await r.report(job)
    assert report["status"] == "Completed"
    assert await r.is_clean(folder) == []
    (record,) = records(report)
    assert (record["fault"]["class"], record["level"]) == ("subhealth", "pod")
    assert record["recover_result"] == "success"
    return record


async def test_a_backup_pod_outlives_the_worker_that_made_it(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    async with Rehearsal(tmp_path / "machine", nodes=3) as r:
        job = await r.submit(document(folder, strategy="hotSwitch"), job_id="demo")
        await trains(r, generation=1)
        pods = {pod.uid: pod for pod in r.pods("demo")}
        await r.fault(f"device {node_of_the_worker(r)} 3 {UNWELL}")
        await r.until(lambda: len(r.pods("demo")) == 3, "a backup pod")
        r.worker.kill9()
        (backup,) = [pod for pod in r.pods("demo") if pod.uid not in pods]
        await trains(r, generation=1, beyond=r.step(generation=1) + 5)
        await r.worker.restart()
        await trains(r, generation=2)
        assert {pod.slot: pod.uid for pod in r.pods("demo")} == {
            0: next(uid for uid, pod in pods.items() if pod.slot == 0),
            1: backup.uid,
        }
        record = await ended(r, job, folder)
        assert record["stages_s"]["standby"] > 0
        assert record["nodes"]["after"] == {"1": backup.node}
        assert len([*(r.home / "agents").glob("demo-1-*")]) == 2, "one backup pod, and no second"


@pytest.mark.parametrize(
    ("save_s", "grace_s", "saves"),
    [
        pytest.param(3.0, 60, True, id="a script that needs three seconds"),
        pytest.param(600.0, 4, False, id="a script that takes longer than its time"),
    ],
)
async def test_a_script_saves_before_the_job_moves_though_the_worker_was_killed(
    tmp_path: Path, save_s: float, grace_s: int, *, saves: bool
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    async with Rehearsal(tmp_path / "machine", nodes=3) as r:
        body = document(folder, strategy="graceExit", save_s=save_s, grace_s=grace_s)
        job = await r.submit(body, job_id="demo")
        await trains(r, generation=1)
        await r.fault(f"device {node_of_the_worker(r)} 3 {UNWELL}")
        await r.until((folder / "asked-0").exists, "the request to save")
        r.worker.kill9()
        if saves:
            await r.until(lambda: any((folder / "ckpt").glob("step-*")), "the checkpoint")
        await r.worker.restart()
        await trains(r, generation=2)
        record = await ended(r, job, folder)
        steps = [int(path.stem[5:]) for path in (folder / "ckpt").glob("step-*")]
        assert len(steps) == saves
        assert record["resume_step"] == (steps[0] if saves else None)
