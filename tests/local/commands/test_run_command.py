"""`everstep run -- COMMAND`, on real processes: as one runs a script with torchrun, but it goes on.

Only here `run` makes the job itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.machine import EXAMPLES, Machine, until_printed
from tests.support.patience import HUNG_S

RANKS = """
import os, pathlib, sys
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], "in", os.getcwd(), sys.argv[1:], flush=True)
if not pathlib.Path("fixed").exists():
    raise ValueError("this line is wrong")
"""


@pytest.mark.long
def test_a_command_runs_without_a_document_and_goes_on_after_a_failure(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "go.py").write_text(RANKS)
    line = ("run", "--processes", "2", "--", "python3", "go.py", "--lr", "1")
    failed = machine.everstep(*line, cwd=folder)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "this line is wrong" in failed.stdout
    (folder / "fixed").touch()
    done = machine.everstep(*line, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "`everstep logs go` shows again what it printed" in done.stdout
    for rank in range(2):
        expected = f"rank {rank} of 2 in {folder} ['--lr', '1']"
        assert f"[rank {rank}] {expected}" in done.stdout
        assert expected in machine.everstep("logs", "go", "--rank", str(rank)).stdout
    again = machine.everstep(*line, cwd=folder)
    assert (again.returncode, "`everstep run --fresh" in again.stderr) == (2, True)
    fresh = machine.everstep("run", "--fresh", *line[1:], cwd=folder)
    assert fresh.returncode == 0, fresh.stdout + fresh.stderr
    assert "go-2 is started" in fresh.stdout
    assert (machine.home / "jobs" / "go-2" / ".everstep" / "generation").is_file()


@pytest.mark.long
def test_a_command_that_is_killed_goes_on_from_its_checkpoint(
    machine: Machine, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLES / "single" / "train.py", tmp_path)
    options = ("--log-pattern", r"^step (?P<step>\d+)$", "--checkpoints", "out")
    command = ("python3", str(tmp_path / "train.py"), "--steps", "40", "--out", "out")
    with machine.running("run", *options, "--", *command, cwd=tmp_path) as process:
        until_printed(process, " s  step ")
        machine.fault("kill train 0")
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0, output
    assert "restart 1: started" in output
    assert (tmp_path / "out" / "ckpt-40.json").is_file()
