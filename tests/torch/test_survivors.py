"""Ranks of real PyTorch that outlive a fault elsewhere: no other process ends, no step and no bit is lost.

Only real collectives block, only real connections are cut, and only a real optimizer shows what a state
lacks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.machine import EXAMPLES, ROOT, Machine
from tests.torch.ranks import PYTHON, undisturbed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("faulty.py")
EXAMPLE = EXAMPLES / "survivors" / "train.py"
ENV = {"SAVE_EVERY": "20", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def trained(
    machine: Machine, folder: Path, faults: str, *, steps: int, world: int, **limits: float
) -> list[dict[str, Any]]:
    """A job that came to its end through these faults, with the same bits as without: its restarts."""
    (folder / "out").mkdir(parents=True)
    env = {**ENV, "STEPS": str(steps)}
    undisturbed(EXAMPLE, {**env, "OUT": str(folder / "alone")}, world=world)
    document = yaml.safe_load((EXAMPLES / "survivors" / "job.yaml").read_text())
    out = str(folder / "out")
    document["spec"] |= {
        "command": [str(PYTHON), str(SCRIPT)],
        "workdir": str(folder),
        "processes_per_node": world,
        "limits": limits,
        "env": {**env, "EXAMPLE": str(EXAMPLE), "OUT": out, "FAULTS": faults, "STEP_S": "0.05"},
    }
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(document))
    done = machine.everstep("run", str(job))
    assert done.returncode == 0, done.stdout + done.stderr
    assert final(folder / "out") == final(folder / "alone")
    restarts: list[dict[str, Any]] = json.loads(
        machine.everstep("restarts", "survivors", "--json").stdout
    )
    return restarts


def final(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "final.json").read_text())
    return content


def processes(folder: Path) -> list[int]:
    """How many processes each rank has had."""
    files = sorted((folder / "out").glob("pids-*"))
    return [len(file.read_text().split()) for file in files]


def test_a_kill_anywhere_costs_one_process_and_the_step_under_way(
    machine: Machine, tmp_path: Path
) -> None:
    faults = "forward:1:15,backward:0:30,update:2:45,save:0:60"
    restarts = trained(machine, tmp_path / "job", faults, steps=75, world=4)
    assert [r["level"] for r in restarts] == ["process"] * 4
    assert [r["resume_step"] for r in restarts] == [14, 29, 45, 60]
    assert processes(tmp_path / "job") == [3, 2, 2, 1]


def test_two_at_once(machine: Machine, tmp_path: Path) -> None:
    faults = "forward:1:15,forward:2:15"
    restarts = trained(machine, tmp_path / "job", faults, steps=30, world=4)
    assert {r["level"] for r in restarts} == {"process"}
    assert processes(tmp_path / "job") == [1, 2, 2, 1]


def test_a_stopped_process_is_replaced_alone(machine: Machine, tmp_path: Path) -> None:
    restarts = trained(machine, tmp_path / "job", "stop:1:15", steps=30, world=2, hang_s=5)
    assert [(r["level"], r["resume_step"]) for r in restarts] == [("process", 14)]
    assert processes(tmp_path / "job") == [1, 2]


def test_a_cut_connection_costs_no_process(machine: Machine, tmp_path: Path) -> None:
    restarts = trained(machine, tmp_path / "job", "cut:2:15", steps=30, world=4)
    assert [(r["level"], r["resume_step"]) for r in restarts] == [("operator_online", 14)]
    assert processes(tmp_path / "job") == [1, 1, 1, 1]
