"""Ranks of real PyTorch that keep snapshots: no completed step is lost, and no bit.

Only real tensors, optimizers and collectives show that a state in memory is all of the state.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from everstep.protocol import wire
from tests.support.machine import EXAMPLES, ROOT, Machine, example, until_printed
from tests.torch.ranks import PYTHON, WITHIN_S, observed, process_of, run_of, undisturbed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

STEPS = 120
KILLS = 4
ENV = {"STEPS": str(STEPS), "SAVE_EVERY": "1000"}
LIBRARY = {"PYTHONPATH": str(ROOT)}


def test_states_with_tensors_come_back_as_they_were() -> None:
    """Of every kind that is written without a second copy, and of those that are not."""
    done = subprocess.run(
        [PYTHON, "-c", ROUND_TRIP],
        check=False,
        env={**os.environ, **LIBRARY},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "all the same\n"), done.stderr


ROUND_TRIP = """
import time, torch
from everstep.protocol.rank_memory import SnapshotHeader
from everstep.train import buffers, states

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3).bfloat16())
optimizer = torch.optim.AdamW(model[0].parameters())
model[0](torch.randn(4, 8)).sum().backward()
optimizer.step()
state = {
    "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state(),
    "transposed": torch.arange(12).view(3, 4).t(), "number": torch.tensor(3.5), "empty": torch.empty(0, 3),
    "parameter": torch.nn.Parameter(torch.ones(2)), "flags": torch.tensor([True, False]),
    "sparse": torch.eye(3).to_sparse(), "expanded": torch.ones(1, 3).expand(4, 3),
    "complex": torch.tensor([1 + 2j]), "array": torch.ones(5).numpy(), "text": "plain",
}

def same(old, new):
    if isinstance(old, torch.Tensor):
        old, new = (one.to_dense() if one.is_sparse else one for one in (old, new))
        return old.dtype == new.dtype and old.shape == new.shape and torch.equal(old, new)
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(same(old[name], new[name]) for name in old)
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(same, old, new))
    return (old == new).all() if hasattr(old, "all") else old == new

content = states.flat(state)
buffer = buffers.Buffer.made(content.nbytes)
buffer.write(SnapshotHeader(3, 1, 0, 1, len(content.head), content.nbytes, time.monotonic()), content)
restored = buffer.read(buffer.snapshot)
buffer.write(SnapshotHeader(4, 1, 0, 1, len(content.head), content.nbytes, time.monotonic()), content)
model[0].weight.data.zero_()
assert not same(state, restored), "the restored state has memory of its own"
model.load_state_dict(restored["model"])
assert same(state, restored)
print("all the same")
"""


def test_a_kill_loses_no_completed_step_and_no_bit(machine: Machine, tmp_path: Path) -> None:
    """Rank 1 and rank 0 are killed by turns, at moments that nothing chooses, before any checkpoint."""
    alone, folder = tmp_path / "alone", tmp_path / "job"
    script = EXAMPLES / "snapshots" / "train.py"
    undisturbed(script, {**ENV, **LIBRARY, "OUT": str(alone)})
    job = example("snapshots", folder, **{'"python3"': f'"{PYTHON}"', "OUT: out": CHANGES})
    with machine.running("run", str(job)) as process:
        before: wire.AgentState | None = None
        for kill in range(KILLS):
            state = observed(machine, lambda state: trains_on(state, before))  # noqa: B023  # called at once
            os.kill(process_of(state, (kill + 1) % 2), signal.SIGKILL)
            before = state
        assert process.wait(WITHIN_S) == 0
    assert final(folder / "out") == final(alone)
    (summary,) = folder.glob("out/*_restartable/summary.json")
    runs = json.loads(summary.read_text())["runs"]
    assert len(runs) == KILLS + 1
    lost = [old["ending_step"] - new["starting_step"] for old, new in itertools.pairwise(runs)]
    assert max(lost) <= 1, runs


def test_a_job_that_leaves_its_pods_takes_its_last_step_along(
    machine: Machine, tmp_path: Path
) -> None:
    """Memory goes with the pods; what they held is a checkpoint by then, saved by the script's function."""
    alone, folder = tmp_path / "alone", tmp_path / "job"
    undisturbed(EXAMPLES / "snapshots" / "train.py", {**ENV, **LIBRARY, "OUT": str(alone)})
    job = example("snapshots", folder, **{'"python3"': f'"{PYTHON}"', "OUT: out": CHANGES})
    with machine.running("run", str(job)) as process:
        machine.env["TEMPORAL_ADDRESS"] = (
            until_printed(process, "its UI")[-1].split()[1].rstrip(",")
        )
        before = observed(machine, lambda state: trains_on(state, None))
        ordered = machine.everstep("restart", "snapshots", "--level", "job")
        assert ordered.returncode == 0, ordered.stderr
        observed(machine, lambda state: trains_on(state, before))
        assert process.wait(WITHIN_S) == 0
    assert final(folder / "out") == final(alone)
    (summary,) = folder.glob("out/*_restartable/summary.json")
    first, second = json.loads(summary.read_text())["runs"]
    assert first["ending_step"] - second["starting_step"] <= 1
    assert (folder / "out" / f"step-{second['starting_step']}").is_dir()


CHANGES = f"""OUT: out
    STEPS: "{STEPS}"
    SAVE_EVERY: "1000"
    PYTHONPATH: "{ROOT}\""""


def final(folder: Path) -> dict[str, Any]:
    weights: dict[str, Any] = json.loads((folder / "final.json").read_text())
    return weights


def trains_on(state: wire.AgentState, before: wire.AgentState | None) -> bool:
    """Whether a later generation than `before` has made ten steps beyond it."""
    run = state["run"]
    if run is None or run["step"] is None:
        return False
    if before is None:
        return bool(run["step"] >= 10)
    earlier = run_of(before)
    is_later = run["generation"] > earlier["generation"]
    return bool(is_later and run["step"] >= (earlier["step"] or 0) + 10)
