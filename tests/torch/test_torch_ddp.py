"""examples/torch_ddp with the real PyTorch: after a fault its ranks are forks of what has imported it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from everstep.agent import wire
from tests.support.machine import Machine, example, until_says
from tests.torch.ranks import PYTHON, WITHIN_S, observed, process_of, run_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]


def test_a_killed_rank_is_forked_from_the_helper(machine: Machine, tmp_path: Path) -> None:
    job = document(tmp_path / "job", steps=300)
    with machine.running("run", str(job)) as process:
        lines = until_says(process, "step ")
        first = observed(machine, has_a_helper)
        assert run_of(first)["prewarmed"] is False
        os.kill(process_of(first, 1), signal.SIGKILL)
        second = observed(machine, lambda s: is_after(s, first))
        assert run_of(second)["prewarmed"] is True, second["notes"]
        rest, _ = process.communicate(timeout=WITHIN_S)
    output = "".join(lines) + rest
    assert process.returncode == 0, output
    assert "restart 1: success" in output
    assert "restart 2" not in output
    assert json.loads((tmp_path / "job" / "out" / "final.json").read_text())["step"] == 300
    assert machine.processes() == []


def document(folder: Path, *, steps: int) -> Path:
    changes = {'"python3"': f'"{PYTHON}"', 'STEPS: "200"': f'STEPS: "{steps}"'}
    return example("torch_ddp", folder, **changes)


def has_a_helper(state: wire.AgentState) -> bool:
    """It has saved something, and the helper is ready."""
    run, helper = state["run"], state["helper"]
    is_saved = run is not None and run["checkpoint"] is not None
    return is_saved and helper is not None and helper["ready"]


def is_after(state: wire.AgentState, first: wire.AgentState) -> bool:
    """A later generation makes steps."""
    run = run_of(state)
    return run["generation"] > run_of(first)["generation"] and run["first_step_at"] is not None


def test_ranks_of_one_helper_draw_different_numbers(machine: Machine, tmp_path: Path) -> None:
    """Of every generator that PyTorch brings, as after a plain start."""
    job = document(tmp_path / "job", steps=1)
    script = tmp_path / "job" / "train.py"
    script.write_text(DRAWS)
    with machine.running("run", str(job)) as process:
        first = observed(machine, lambda s: s["helper"] and s["helper"]["ready"])
        os.kill(process_of(first, 1), signal.SIGKILL)
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
