"""Trainer configurations on this machine: the example of their page, and the program they are written for."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml

from tests.agent.pod import until
from tests.support.machine import EXAMPLES, ROOT, Machine
from tests.support.patience import HUNG_S

EXAMPLE = EXAMPLES / "cerebras.yaml"

CSZOO = f"""#!{sys.executable}
import json, pathlib, sys, time, yaml
mode, path = sys.argv[1:]
trainer = yaml.safe_load(open(path))["trainer"]
out = pathlib.Path(trainer["init"]["model_dir"])
with (out / "seen.jsonl").open("a") as seen:
    seen.write(json.dumps([mode, trainer]) + "\\n")
if mode == "fit" and "ckpt_path" not in trainer["fit"]:
    (out / "checkpoint_10.mdl").write_text("weights")
    time.sleep(4)
    raise ValueError("something went wrong")
"""
"""It fails once it has saved, and ends well if it resumes."""


def test_the_page_shows_the_example_that_is_run() -> None:
    page = (ROOT / "docs" / "cerebras.md").read_text()
    assert indent(EXAMPLE.read_text(), "    ") in page


@pytest.mark.long
def test_the_example_goes_on_from_its_checkpoint(machine: Machine, tmp_path: Path) -> None:
    file, saved = tmp_path / EXAMPLE.name, tmp_path / "out/cerebras/main"
    file.write_text(EXAMPLE.read_text().replace("--steps 60", "--steps 60 --step-s 0.3"))
    shutil.copytree(EXAMPLES / "single", tmp_path / "single", ignore=shutil.ignore_patterns("out"))
    with machine.running("run", str(file)) as process:
        until((saved / "ckpt-20.json").exists, what="the second checkpoint")
        machine.fault("kill training-job 0")
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0, output
    (summary,) = saved.glob("*_restartable/summary.json")
    first, second = json.loads(summary.read_text())["runs"]
    assert (first["status"], second["status"]) == ("failed", "success")
    assert (first["starting_step"], second["ending_step"]) == (0, 60)
    assert second["starting_step"] >= 10
    assert (saved / "ckpt-60.json").exists()


@pytest.mark.long
def test_cszoo_reads_the_configuration_of_its_phase_at_each_start(
    machine: Machine, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "cszoo"
    program.parent.mkdir()
    program.write_text(CSZOO)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    machine.env["PATH"] = f"{program.parent}:{machine.env['PATH']}"
    init = {
        "model_dir": "out",
        "model": {"name": "tiny"},
        "checkpoint": {"steps": 10},
        "optimizer": {"AdamW": {"eps": 1e-8, "foreach": "no"}},
    }
    restarts = {"autorestart": {"max_num_restarts": 1}}
    fit: dict[str, Any] = {"init": {**init, **restarts}, "fit": {"train_dataloader": {"size": 1}}}
    after = {"init": {**init, **restarts}, "validate": {"val_dataloader": {"size": 1}}}
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump({"trainer": [fit, after]}))
    ended = machine.everstep("run", str(file), "--id", "zoo")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = (tmp_path / "out" / "seen.jsonl").read_text().splitlines()
    first, again, validation = (json.loads(line) for line in lines)
    saving, going_on = (
        {"steps": 10, "save_initial_checkpoint": is_first} for is_first in (True, False)
    )
    saved = {**fit["fit"], "ckpt_path": str(tmp_path / "out" / "checkpoint_10.mdl")}
    assert first == ["fit", {"init": {**init, "checkpoint": saving}, "fit": fit["fit"]}]
    assert again == ["fit", {"init": {**init, "checkpoint": going_on}, "fit": saved}]
    assert validation == ["validate", {"init": init, "validate": after["validate"]}]
