"""Long limits, rehearsed in seconds, and what a device shows as the only sign of life."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.support.machine import Machine, until_printed
from tests.support.patience import HUNG_S

SCALE = 100
LIMIT_S = 300 / SCALE  # where nothing was proven yet
SCRIPT = """
import os, pathlib, time
if os.environ["EVERSTEP_GENERATION"] == "1":
    pathlib.Path("up").touch()
    time.sleep(600)
"""


@pytest.mark.long
def test_a_device_that_is_used_keeps_a_silent_job_alive_until_it_stands_still(
    machine: Machine, tmp_path: Path
) -> None:
    machine.env["EVERSTEP_TIME_SCALE"] = str(SCALE)
    (tmp_path / "quiet.py").write_text(SCRIPT)
    command = {"command": ["python", "quiet.py"], "accelerators_per_node": 8}
    job = tmp_path / "job.json"
    job.write_text(
        json.dumps(
            {
                "apiVersion": "everstep/v1",
                "kind": "TrainingJob",
                "metadata": {"name": "quiet"},
                "spec": {**command, "accelerator": "simulated"},
            }
        )
    )
    metrics_file = machine.home / "sim" / "n0.json"
    metrics_file.parent.mkdir(parents=True)
    metrics_file.write_text('{"devices": {"0": {"utilisation": "vary"}, "3": {"utilisation": 80}}}')
    with machine.running("run", str(job)) as process:
        lines = until_printed(process, "server ")
        machine.env["TEMPORAL_ADDRESS"] = re.findall(r"server (\S+),", lines[-1])[0]
        up = tmp_path / "up"
        while not (up.exists() and time.time() - up.stat().st_mtime > 2 * LIMIT_S):
            assert process.poll() is None
            time.sleep(0.05)
        status = json.loads(machine.everstep("status", "quiet", "--json").stdout)
        assert (status["state"], status["restarts"]) == ("running", 0)
        assert (status["generation"], status["time_scale"]) == (1, SCALE)
        assert machine.everstep("fault", "metric", "n0", "0", "much").returncode == 2
        assert machine.everstep("fault", "metric", "n0", "0", "37").returncode == 0
        rest, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0, rest
    assert "hang -> suspension" in rest or "hang on n0 -> suspension" in rest
    assert "restart 2" not in rest
    assert json.loads(metrics_file.read_text()) == {
        "devices": {"0": {"utilisation": 37}, "3": {"utilisation": 80}}
    }
    assert machine.processes() == []
