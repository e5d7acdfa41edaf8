"""`everstep checkpoint` on real processes, and the same by Temporal's own update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.pod import until
from tests.support.machine import Machine
from tests.support.patience import HUNG_S

SCRIPT = """
import os, signal, threading, time
wanted = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: wanted.set())
os.makedirs("out", exist_ok=True)
for step in range(1, 10**6):
    print("step", step, flush=True)
    time.sleep(0.05)
    if wanted.is_set() and not os.path.exists("wait"):
        wanted.clear()
        with open("out/part", "w") as file:
            file.write("x" * 100)
        os.rename("out/part", f"out/step_{step}")
    if os.path.exists("end"):
        break
"""


def state_of(machine: Machine, job: str) -> str:
    return str(json.loads(machine.everstep("status", job, "--json").stdout)["state"])


@pytest.mark.long
def test_ranks_save_on_request_and_the_command_says_which_step(
    machine: Machine, tmp_path: Path
) -> None:
    """Only here a real signal, a real save and the command meet; behind a shell too."""
    machine.env.pop("TEMPORAL_ADDRESS")  # every command finds the server of `run`
    (tmp_path / "go.py").write_text(SCRIPT)
    options = ("--no-logs", "--id", "go", "--checkpoints", "out", "--save-signal", "SIGUSR1")
    command = ("sh", "-c", "python3 go.py; exit $?")
    with machine.running("run", *options, "--", *command, cwd=tmp_path) as process:
        until((tmp_path / "out").exists, what="the script")
        done = machine.everstep("checkpoint", "go")
        (saved,) = (tmp_path / "out").glob("step_*")
        step = saved.name.removeprefix("step_")
        assert (done.returncode, done.stdout) == (0, f"go: step {step} was saved (step_{step})\n")
        (tmp_path / "wait").touch()
        late = machine.everstep("checkpoint", "go", "--within-s", "1")
        expected = "go: no new checkpoint was seen within 1 s; rank 0 got SIGUSR1\n"
        assert (late.returncode, late.stdout) == (1, expected)
        machine.everstep("pause", "go")
        until(lambda: state_of(machine, "go") == "paused", what="the pause")
        refused = machine.everstep("checkpoint", "go")
        assert (refused.returncode, "paused" in refused.stderr) == (2, True), refused.stderr
        (tmp_path / "end").touch()
        machine.everstep("resume", "go")
        output, _ = process.communicate(timeout=HUNG_S)
        assert process.returncode == 0, output
