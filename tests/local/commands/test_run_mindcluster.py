"""An AscendJob on this machine: a real server, a real worker, real processes, one of them killed.

Only here the containers' command of a manifest really starts, and its labels answer a real crash.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.machine import EXAMPLES, Machine, until_printed
from tests.support.patience import HUNG_S


@pytest.mark.long
def test_the_example_survives_the_crash_of_a_pod(machine: Machine, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "synthetic", tmp_path / "synthetic")
    job = shutil.copy(EXAMPLES / "mindcluster.yaml", tmp_path)
    with machine.running("run", str(job), "--nodes", "3") as process:
        output = until_printed(process, "step 1")
        machine.fault("kill mindcluster 1")
        output += until_printed(process, "restart 1: started")
        rest, _ = process.communicate(timeout=HUNG_S)
    text = "".join(output) + rest
    assert process.returncode == 0, text
    assert "crash of rank 1 on n1: signal 9 -> pod" in text
    assert "restart 2" not in text
    (records,) = (tmp_path / "out" / "mindcluster").glob("*_restartable")
    runs = json.loads((records / "summary.json").read_text())["runs"]
    assert [run["status"] for run in runs] == ["failed", "success"]
    final = json.loads((tmp_path / "out" / "mindcluster" / "ckpt" / "final.json").read_text())
    assert final["step"] == 100
    assert machine.processes() == []
