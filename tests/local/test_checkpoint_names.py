"""A script that crashes again and again and advances each time, whatever its checkpoints are called.

Only a script that really saves has names of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.machine import Machine

CRASHES = 5  # two more than restarts without progress may be

SCRIPT = """
import pathlib, sys, time, zipfile

name, folder = sys.argv[1], pathlib.Path("ckpt")
folder.mkdir(exist_ok=True)
own = pathlib.Path("own")  # what it is_known from, whatever anybody else recognises
step = int(own.read_text()) if own.exists() else 0
for step in range(step + 1, step + 11):
    print("step", step, flush=True)
    time.sleep(0.02)
path = folder / name.format(epoch=step // 10, step=step)
with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
    archive.writestr("weights", str(step))
path.with_suffix(".tmp").replace(path)
own.write_text(str(step))
time.sleep(2.5)  # long enough for somebody to look
sys.exit(step < 10 * (1 + int(sys.argv[2])))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("resnet_50-{epoch}.weights", False),
        ("epoch_{epoch}.pth", True),
        ("CKP-{epoch}_10.ckpt", True),
        ("last.pt", True),
    ],
)
def test_a_job_that_advances_does_not_end_for_its_crashes(
    name: str, is_known: bool, machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    document = {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "names"},
        "spec": {
            "command": [sys.executable, "train.py", name, str(CRASHES)],
            "workdir": str(tmp_path),
            "model_dir": "out",
            "checkpoints": {"path": "ckpt"},
            "progress": {"log_pattern": r"^step (?P<step>\d+)$"},
        },
    }
    job = tmp_path / "job.json"
    job.write_text(json.dumps(document))
    ended = machine.everstep("run", str(job))
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    origin = "an unknown step" if is_known else "what its script finds"
    assert output.count(f": started, from {origin}") == CRASHES, output
    (folder,) = (tmp_path / "out").glob("*_restartable")
    runs = json.loads((folder / "summary.json").read_text())["runs"]
    assert [run["starting_step"] for run in runs] == [0, *[None] * CRASHES]
    newest = str(tmp_path / "ckpt" / name.format(epoch=CRASHES))
    assert runs[-1]["loaded_checkpoint"] == (newest if is_known else None)
