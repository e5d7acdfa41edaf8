"""Forks of a process that has imported the real PyTorch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from everstep.protocol import wire
from tests.support.machine import Machine, example
from tests.torch.ranks import PYTHON, WITHIN_S, observed, process_of, run_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]


def is_after(state: wire.AgentState, first: wire.AgentState) -> bool:
    """A later generation makes steps."""
    run = run_of(state)
    return run["generation"] > run_of(first)["generation"] and run["first_step_at"] is not None


def test_ranks_of_one_helper_draw_different_numbers(machine: Machine, tmp_path: Path) -> None:
    """Every generator that PyTorch brings draws other numbers in each rank, as after a plain start."""
    imports = ", torch._dynamo, torch.distributed.checkpoint.state_dict"
    changes = {'"python3"': f'"{PYTHON}"', imports: ""}
    job = example("torch_ddp", tmp_path / "job", **changes)
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
