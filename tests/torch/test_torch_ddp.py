"""examples/torch_ddp with the real PyTorch: faults cost no bit of the weights, with and without prewarm."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from everstep.agent import wire
from tests.support.machine import EXAMPLES, Machine, example, until_says
from tests.torch import ranks
from tests.torch.ranks import PYTHON, WITHIN_S, observed, run_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = EXAMPLES / "torch_ddp" / "train.py"
PREWARM = "  prewarm: [torch, torch._dynamo]\n"


def document(folder: Path, *, steps: int, prewarm: bool) -> Path:
    changes = {
        '"python3", "train.py"': f'"{PYTHON}", "train.py"',
        'STEPS: "200"': f'STEPS: "{steps}"',
    }
    if not prewarm:
        changes[PREWARM] = ""
    return example("torch_ddp", folder, **changes)


def undisturbed(folder: Path, *, steps: int) -> dict[str, Any]:
    """What two ranks end with that nobody disturbs."""
    ranks.undisturbed(SCRIPT, {"CHECKPOINTS": str(folder), "STEPS": str(steps)})
    return final(folder)


def final(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / "final.json").read_text())
    return said


def test_the_example_runs_to_its_end(machine: Machine, tmp_path: Path) -> None:
    job = document(tmp_path / "job", steps=30, prewarm=True)
    ended = machine.everstep("run", str(job))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "main completed" in ended.stdout
    assert final(tmp_path / "job" / "out" / "ckpt")["step"] == 30
    assert machine.processes() == []


@pytest.mark.parametrize(("prewarm", "steps"), [(False, 60), (True, 300)], ids=["plain", "prewarm"])
def test_a_killed_rank_costs_one_restart_and_no_bit(
    machine: Machine, tmp_path: Path, prewarm: bool, steps: int
) -> None:
    expected = undisturbed(tmp_path / "alone", steps=steps)
    job = document(tmp_path / "job", steps=steps, prewarm=prewarm)
    with machine.running("run", str(job)) as process:
        said = until_says(process, "step ")
        first = observed(machine, lambda s: is_trained(s, prewarm=prewarm))
        assert run_of(first)["prewarmed"] is (False if prewarm else None)
        os.kill(run_of(first)["ranks"][1]["pid"], signal.SIGKILL)
        second = observed(machine, lambda s: is_after(s, first))
        assert run_of(second)["prewarmed"] is (True if prewarm else None), second["notes"]
        rest, _ = process.communicate(timeout=WITHIN_S)
    told = "".join(said) + rest
    assert process.returncode == 0, told
    assert "restart 1: success" in told
    assert "restart 2" not in told
    assert final(tmp_path / "job" / "out" / "ckpt") == expected
    assert machine.processes() == []


def is_trained(state: wire.AgentState, *, prewarm: bool) -> bool:
    """It has saved something, and the helper is ready if there is to be one."""
    run, helper = state["run"], state["helper"]
    is_saved = run is not None and run["checkpoint"] is not None
    return is_saved and (not prewarm or (helper is not None and helper["ready"]))


def is_after(state: wire.AgentState, first: wire.AgentState) -> bool:
    """A later generation makes steps."""
    run = run_of(state)
    return run["generation"] > run_of(first)["generation"] and run["first_step_at"] is not None


def test_ranks_of_one_helper_draw_different_numbers(machine: Machine, tmp_path: Path) -> None:
    """Of every generator that PyTorch brings, as after a plain start."""
    job = document(tmp_path / "job", steps=1, prewarm=True)
    script = tmp_path / "job" / "train.py"
    script.write_text(DRAWS)
    with machine.running("run", str(job)) as process:
        first = observed(machine, lambda s: s["helper"] and s["helper"]["ready"])
        os.kill(run_of(first)["ranks"][1]["pid"], signal.SIGKILL)
        observed(machine, lambda s: is_after(s, first))
        (tmp_path / "job" / "go").touch()
        assert process.wait(WITHIN_S) == 0
    drawn = [path.read_text() for path in (tmp_path / "job").glob("drawn-2-*")]
    numbers = [number for text in drawn for number in text.split()]
    assert len(drawn) == 2
    assert len(set(numbers)) == len(numbers) == 6


DRAWS = """
import os, pathlib, random, time
import numpy, torch
print("step 1 loss 0", flush=True)
drawn = [torch.rand(1).item(), numpy.random.rand(), random.random()]
name = f"drawn-{os.environ['EVERSTEP_GENERATION']}-{os.environ['RANK']}"
pathlib.Path(name).write_text(" ".join(map(str, drawn)))
while not os.path.exists("go"):
    time.sleep(0.05)
"""
