"""Scripts of frameworks, as their users write them: killed while they train and while they save.

What they go on from is what the framework itself wrote, and no kill costs a bit of the weights. Their later
ranks are forks of a process that has imported the framework.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.protocol import wire
from tests.support.machine import EXAMPLES, Machine, example, until_printed
from tests.torch.ranks import PYTHON, WITHIN_S, observed, process_of, run_of, undisturbed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

SAVED = 2  # checkpoints before the first kill
BEGINNINGS = ("checkpoint-", "epoch=", "step-")
POLL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """An example: how it is made longer, where its last checkpoint is, how that is read."""

    name: str
    longer: dict[str, str]
    env: dict[str, str]
    last: str
    reads: str  # Python that makes `weights` of `path`


FRAMEWORKS = (
    Framework(
        name="transformers",
        longer={'STEPS: "60"': 'STEPS: "120"', "/60 ": "/120 "},
        env={"STEPS": "120", "SAVE_EVERY": "10"},
        last="checkpoint-120/model.safetensors",
        reads="from safetensors.torch import load_file; weights = load_file(path)",
    ),
    Framework(
        name="lightning",
        longer={'EPOCHS: "6"': 'EPOCHS: "30"'},
        env={"EPOCHS": "30"},
        last="epoch=29-step=300.ckpt",
        reads="import torch; weights = torch.load(path, weights_only=False)['state_dict']",
    ),
    Framework(
        name="torch_ddp",
        longer={},
        env={"STEPS": "200", "SAVE_EVERY": "10"},
        last="step-200",
        reads="import torch; from torch.distributed.checkpoint.format_utils import dcp_to_torch_save;"
        "dcp_to_torch_save(path, path + '.pt'); weights = torch.load(path + '.pt')['model']",
    ),
)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_kills_cost_restarts_and_no_bit(
    framework: Framework, machine: Machine, tmp_path: Path
) -> None:
    alone, job = tmp_path / "alone", tmp_path / "job"
    undisturbed(EXAMPLES / framework.name / "train.py", {**framework.env, "OUT": str(alone)})
    written = example(framework.name, job, **{'"python3"': f'"{PYTHON}"'}, **framework.longer)
    with machine.running("run", str(written)) as process:
        lines = until_printed(process, "running, generation 1")
        state = trained(machine, generation=0)
        assert not run_of(state)["prewarmed"]
        until(process, lambda: len(saved(job / "out")) >= SAVED)
        observed(machine, lambda state: state["helper"] is not None and state["helper"]["ready"])
        kill(state, rank=1)
        state = trained(machine, run_of(state)["generation"])
        assert run_of(state)["prewarmed"], state["notes"]
        until_more_is_saved(process, job / "out")
        kill(state, rank=0)
        rest, _ = process.communicate(timeout=WITHIN_S)
    output = "".join(lines) + rest
    assert process.returncode == 0, output
    restarts = [f"restart {n}: started, from step" in output for n in (1, 2, 3)]
    assert restarts == [True, True, False], output
    assert_same_weights(framework, job / "out", alone)
    assert machine.processes() == []


def trained(machine: Machine, generation: int) -> wire.AgentState:
    """A later generation trains."""

    def is_so(state: wire.AgentState) -> bool:
        run = state["run"]
        return (
            run is not None
            and run["generation"] > generation
            and run["started_at"] is not None
            and len(run["ranks"]) == 2
        )

    return observed(machine, is_so)


def saved(out: Path) -> set[str]:
    """What the framework has begun to save."""
    return {path.name for path in out.iterdir() if path.name.startswith(BEGINNINGS)}


def until_more_is_saved(process: subprocess.Popen[str], out: Path) -> None:
    begun = saved(out)
    until(process, lambda: saved(out) - begun)


def until(process: subprocess.Popen[str], holds: Callable[[], object]) -> None:
    """Looks every millisecond: what is being saved is saved in some. It leaves the processor to the ranks."""
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "nothing new was saved"
        time.sleep(POLL_S)


def kill(state: wire.AgentState, *, rank: int) -> None:
    os.kill(process_of(state, rank), signal.SIGKILL)


def assert_same_weights(framework: Framework, *folders: Path) -> None:
    """Every weight in the last checkpoints is the same to the last bit, as the framework reads them."""
    digests = f"""
import hashlib, sys
for path in sys.argv[1:]:
    {framework.reads}
    print(*(f"{{name}} {{hashlib.sha256(weights[name].numpy().tobytes()).hexdigest()}}"
            for name in sorted(weights)), sep=", ")
"""
    paths = [folder / framework.last for folder in folders]
    read = subprocess.run(
        [PYTHON, "-c", digests, *paths], capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    lines = read.stdout.splitlines()
    assert lines == [lines[0]] * len(folders)
    assert lines[0]
