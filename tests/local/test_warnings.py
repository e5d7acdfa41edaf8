"""Warnings of a job that goes on, measured by real agents: shown once, and taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.pod import until
from tests.support.machine import Machine
from tests.support.patience import HUNG_S

SCRIPT = """
import os, shutil, time
def save(step, size):
    path = f"ckpt/step_{step}"
    with open(path + ".part", "wb") as file:
        file.truncate(size)  # sparse: no disk has to hold it
    os.rename(path + ".part", path)
def wait_for(name):
    while not os.path.exists(name):
        print("epoch 1", flush=True)
        time.sleep(0.1)
os.makedirs("ckpt", exist_ok=True)
for step in range(1, 5):
    save(step, 10)
    time.sleep(2.5)  # an agent notices each of them
wait_for("save")
save(5, 2 * shutil.disk_usage(".").free)
wait_for("end")
"""


def document(folder: Path) -> Path:
    (folder / "train.py").write_text(SCRIPT)
    path = folder / "job.json"
    spec = {
        "command": ["python3", "train.py"],
        "checkpoints": {"path": str(folder / "ckpt")},
        "progress": {"log_pattern": "step (?P<step>[0-9]+)"},
    }
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    path.write_text(json.dumps({**head, "spec": spec}))
    return path


@pytest.mark.long
def test_a_job_that_goes_on_tells_what_is_wrong_with_it(machine: Machine, tmp_path: Path) -> None:
    machine.env.pop("TEMPORAL_ADDRESS")  # every command finds the server of `run`
    with machine.running("run", str(document(tmp_path))) as process:

        def until_printed(text: str) -> None:
            until(lambda: text in machine.everstep("events", "demo").stdout, what=text)

        until_printed("warning: no complete checkpoint for")
        until_printed("matches progress.log_pattern")
        status = machine.everstep("status", "demo")
        assert "progress.log_pattern" in status.stdout
        (tmp_path / "save").touch()
        until_printed("are free for checkpoints, and the last one took")
        until_printed("over: no complete checkpoint for")
        job_status = json.loads(machine.everstep("status", "demo", "--json").stdout)
        kinds = {warning["kind"] for warning in job_status["warnings"]}
        assert kinds - {"checkpoint_overdue"} == {"log_pattern", "checkpoint_room"}
        (tmp_path / "end").touch()
        output, _ = process.communicate(timeout=HUNG_S)
        assert process.returncode == 0, output
        assert "warning: no complete checkpoint" in output
