"""One line for the Trainer of Hugging Face, and one for that of Lightning: a kill costs a step at most.

Only the real trainers show that what they resume from memory is all of their state.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from everstep.protocol import wire
from tests.support.machine import EXAMPLES, ROOT, Machine, example
from tests.torch.ranks import PYTHON, WITHIN_S, observed, process_of, undisturbed
from tests.torch.test_frameworks import FRAMEWORKS, Framework, assert_same_weights
from tests.torch.test_snapshots import trains_on

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("KILLS", "4"))
STEPS, EPOCHS = 30 * KILLS, 6 * KILLS
TRANSFORMERS = replace(
    FRAMEWORKS[0],
    longer={'STEPS: "60"': f'STEPS: "{STEPS}"', "/60 ": f"/{STEPS} "},
    env={"STEPS": str(STEPS), "SAVE_EVERY": "10"},
    last=f"checkpoint-{STEPS}/model.safetensors",
)
LIGHTNING = replace(FRAMEWORKS[1], longer={'EPOCHS: "6"': f'EPOCHS: "{EPOCHS}"'})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is added to an example's script, in place of what, and whether no bit differs afterwards."""

    framework: Framework
    imports: str
    before: str
    after: str
    is_exact: bool


LINES = (
    Line(
        framework=TRANSFORMERS,
        imports="from everstep.train.transformers import keep_snapshots",
        before="    trainer.train(",
        after="    keep_snapshots(trainer)\n    trainer.train(",
        is_exact=True,
    ),
    Line(
        framework=LIGHTNING,
        imports="from everstep.train.lightning import snapshots",
        before="callbacks=[ModelCheckpoint(",
        after="callbacks=[snapshots(), ModelCheckpoint(",
        # In the middle of an epoch Lightning begins the loader again.
        is_exact=False,
    ),
)


def changed(line: Line, script: Path) -> None:
    """Add the line to the script."""
    text = script.read_text()
    assert line.before in text
    text = text.replace(line.before, line.after)
    script.write_text(text.replace("import torch\n", f"import torch\n{line.imports}\n", 1))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.framework.name)
def test_a_kill_costs_a_step(line: Line, machine: Machine, tmp_path: Path) -> None:
    """Rank 1 and rank 0 are killed by turns, at moments that nothing chooses."""
    framework, job = line.framework, tmp_path / "job"
    env = "  env:\n"
    library = {env: f'{env}    PYTHONPATH: "{ROOT}"\n'}
    changes = {'"python3"': f'"{PYTHON}"', **framework.longer, **library}
    written = example(framework.name, job, **changes)
    changed(line, job / "train.py")
    with machine.running("run", str(written)) as process:
        before: wire.AgentState | None = None
        for kill in range(KILLS):
            state = observed(machine, lambda state: trains_on(state, before))  # noqa: B023  # called at once
            os.kill(process_of(state, (kill + 1) % 2), signal.SIGKILL)
            before = state
        output, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, output
    runs = runs_of(job)
    assert len(runs) == KILLS + 1
    lost = [old["ending_step"] - new["starting_step"] for old, new in itertools.pairwise(runs)]
    assert max(lost) <= 1, runs
    if line.is_exact:
        alone = tmp_path / "alone"
        undisturbed(EXAMPLES / framework.name / "train.py", {**framework.env, "OUT": str(alone)})
        assert_same_weights(framework, job / "out", alone)


def runs_of(job: Path) -> list[dict[str, Any]]:
    (summary,) = job.glob("out/*_restartable/summary.json")
    runs: list[dict[str, Any]] = json.loads(summary.read_text())["runs"]
    return runs
