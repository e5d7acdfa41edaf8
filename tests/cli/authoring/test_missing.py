"""What a document names and this machine has not is a note of `validate` and `submit`, never an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import AsyncCli, Cli

NONE: list[tuple[str, str]] = []


def written(folder: Path, **spec: Any) -> str:
    spec = {"checkpoints": {"path": "ckpt"}, **spec}  # nothing else is worth a note
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    (folder / "job.json").write_text(json.dumps({**head, "spec": spec}))
    (folder / "train.py").touch()
    return str(folder / "job.json")


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"command": ["nosuch", "train.py"]}, "spec.command", "there is no program nosuch on"),
        ({"command": ["./train.py"]}, "spec.command", "there is no program ./train.py on"),
        ({"command": ["python3", "nosuch.py"]}, "spec.command", "there is no nosuch.py in"),
        ({"command": "python3 nosuch.py --lr 1"}, "spec.command", "there is no nosuch.py in"),
        ({"command": "exec nosuch train.py"}, "spec.command", "there is no program nosuch on"),
        ({"command": ["torchrun.sh", "x"]}, "spec.command", "there is no program torchrun.sh on"),
        ({"command": ["python3"], "workdir": "nowhere"}, "spec.workdir", "nowhere is no folder"),
        ({"command": ["python3", "a.py"], "env": {"PATH": "/nowhere"}}, "spec.command", "python3"),
    ],
)
def test_what_is_missing_here_is_a_note(
    cli: Cli, tmp_path: Path, spec: dict[str, Any], field: str, message: str
) -> None:
    report = cli("validate", written(tmp_path, **spec), "--json").json
    assert report["ok"]
    note = report["notes"][0]
    assert note["field"] == field
    assert message in note["message"]
    assert "where the worker runs" in note["message"]


@pytest.mark.parametrize(
    "spec",
    [
        {"command": ["python3", "train.py"]},
        {"command": "python3 train.py --lr 1"},
        {"command": "exec python3 train.py"},
        {"command": "umask 077"},
        {"command": ["python3", "-m", "nosuch.py"]},
        {"command": ["python3", "-c", "nosuch.py"]},
        {"command": "cd /nowhere && nosuch train.py"},
        {
            "command": ["nosuch", "nosuch.py"],
            "cluster": "gpus",
            "image": "train:1",
            "checkpoints": {"path": "/storage/ckpt"},
        },
    ],
)
def test_what_is_here_or_cannot_be_told_is_none(
    cli: Cli, tmp_path: Path, spec: dict[str, Any]
) -> None:
    assert cli("validate", written(tmp_path, **spec), "--json").json["notes"] == NONE


def test_each_thing_is_said_once(cli: Cli, tmp_path: Path) -> None:
    phases = [{"name": "one"}, {"name": "two"}]
    file = written(tmp_path, command=["python3", "nosuch.py"], phases=phases)
    ended = cli("validate", file)
    assert ended.code == 0
    assert ended.out.count("nosuch.py") == 1


async def test_submit_says_it_and_submits(served: AsyncCli, tmp_path: Path) -> None:
    file = written(tmp_path, command=["python3", "nosuch.py"])
    ended = await served("submit", file)
    assert ended.code == 0
    assert "note   spec.command: there is no nosuch.py" in ended.out
    result = await served("submit", file, "--id", "other", "--json")
    assert [note["field"] for note in result.json["notes"]] == ["spec.command"]
