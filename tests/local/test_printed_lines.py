"""What is read in the lines of scripts that are written without Everstep, on real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.pod import until
from tests.support.machine import Machine
from tests.support.patience import HUNG_S

BAR = """
import os, sys, time
out = "out"
os.makedirs(out, exist_ok=True)
first = max([int(name[5:]) for name in os.listdir(out) if name.startswith("step_")], default=0)
for step in range(first + 1, 10**6):
    bar = f"Epoch 0:   0%|          | {step}/1000000 [00:01<00:10,  8.34it/s, train_loss=0.5]"
    sys.stdout.write("\\r" + bar)
    sys.stdout.flush()
    if step % 5 == 0:
        open(f"{out}/part", "w").write("x" * 100)
        os.rename(f"{out}/part", f"{out}/step_{step}")
    if os.path.exists("end"):
        sys.exit()
    time.sleep(0.2)
"""


NANS = """
import os, time
os.makedirs("out", exist_ok=True)
first = max([int(name[5:]) for name in os.listdir("out") if name.startswith("step_")], default=0)
print("begins behind", first, flush=True)
is_poisoned = False
for step in range(first + 1, 41):
    if step == 21 and not os.path.exists("once"):
        time.sleep(3)  # the agent notices what is saved
        is_poisoned = True
        open("once", "w").close()
    print(f"step {step} loss {float('nan') if is_poisoned else 0.5}", flush=True)
    if step % 10 == 0:
        open("out/part", "w").write("x" * 100)
        os.rename("out/part", f"out/step_{step}")
    if step == 30 and is_poisoned:
        time.sleep(600)
    time.sleep(0.05)
"""


def events(machine: Machine) -> list[str]:
    """None before the job is there."""
    answer = machine.everstep("events", "go", "--json")
    rows = json.loads(answer.stdout) if answer.returncode == 0 else []
    return [event["message"] for event in rows]


@pytest.mark.long
def test_steps_of_a_bar_are_found_and_named_once(machine: Machine, tmp_path: Path) -> None:
    """Only real processes draw a bar through a pipe; a restart begins at another step of it."""
    machine.env.pop("TEMPORAL_ADDRESS")  # every command finds the server of `run`
    (tmp_path / "go.py").write_text(BAR)
    line = ("run", "--no-logs", "--checkpoints", "out", "--", "python3", "go.py")
    with machine.running(*line, cwd=tmp_path) as process:
        until((tmp_path / "out" / "step_10").exists, what="a checkpoint")
        machine.fault("kill go 0")
        until(lambda: generation_with_step(machine) == 2, what="a step of the second run")
        texts = [text for text in events(machine) if text.startswith("steps:")]
        assert texts == ["steps: taken from 'Epoch 0: 0% 1/1000000'"]
        (tmp_path / "end").touch()
        output, _ = process.communicate(timeout=HUNG_S)
        assert process.returncode == 0, output
        assert output.count("steps: taken from 'Epoch 0: 0% 1/1000000'") == 1


def generation_with_step(machine: Machine) -> int | None:
    status = json.loads(machine.everstep("status", "go", "--json").stdout)
    generation: int = status["generation"]
    return generation if status["state"] == "running" and status["step"] is not None else None


@pytest.mark.long
def test_a_job_whose_loss_is_nan_goes_back_behind_its_newest_checkpoint(
    machine: Machine, tmp_path: Path
) -> None:
    """Only a real script has saved the wrong numbers before they count as a fault."""
    (tmp_path / "go.py").write_text(NANS)
    done = machine.everstep("run", "--checkpoints", "out", "--", "python3", "go.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "printed loss nan 3 times in a row" in done.stdout
    assert "-> rollback" in done.stdout
    begins = [line.split("behind ")[1] for line in done.stdout.splitlines() if "begins" in line]
    assert begins == ["0", "10"]


STRAGGLER = """
import itertools, os, time
for step in itertools.count(1):
    is_slow = os.environ["RANK"] == "1" and not os.path.exists("repaired")
    print("step", step, flush=True)
    time.sleep(0.5 if is_slow else 0.1)
    if os.path.exists("end"):
        break
"""


@pytest.mark.long
def test_a_straggler_is_shown_while_it_lasts_and_nothing_is_restarted(
    machine: Machine, tmp_path: Path
) -> None:
    """Only real ranks have a pace of their own; the five minutes are a few seconds here."""
    machine.env.pop("TEMPORAL_ADDRESS")  # every command finds the server of `run`
    machine.env["EVERSTEP_TIME_SCALE"] = "60"
    (tmp_path / "go.py").write_text(STRAGGLER)
    line = ("run", "--no-logs", "--processes", "2", "--hang-s", "600", "--", "python3", "go.py")

    def happened(text: str) -> bool:
        return any(text in message for message in events(machine))

    with machine.running(*line, cwd=tmp_path) as process:
        until(lambda: happened("warning: rank 1 on n0 made"), what="a warning")
        assert happened("slow.rank") or happened("noted"), events(machine)
        assert "its peers made" in machine.everstep("status", "go").stdout
        (tmp_path / "repaired").touch()
        until(lambda: happened("over: rank 1 on n0 made"), what="the end of it")
        (tmp_path / "end").touch()
        output, _ = process.communicate(timeout=HUNG_S)
        assert process.returncode == 0, output
        assert "restart 1" not in output
