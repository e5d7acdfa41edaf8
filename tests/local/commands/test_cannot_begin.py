"""Jobs that cannot begin: each says why, and soon. Only real interpreters and folders say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machine import Machine


def document(folder: Path, **spec_fields: object) -> Path:
    path = folder / "job.json"
    spec = {"command": ["python3", "-c", "pass"], "model_dir": str(folder / "out"), **spec_fields}
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    path.write_text(json.dumps({**head, "spec": spec}))
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"command": ["nosuchprog"]}, "nosuchprog: No such file or directory"),
        ({"workdir": "nowhere"}, "nowhere: No such file or directory"),
        ({"env": {"T": {"from": "NO_SUCH"}}}, "the worker has no variable NO_SUCH"),
    ],
)
def test_a_command_that_cannot_be_executed_fails_the_job_with_its_name(
    machine: Machine, tmp_path: Path, spec: dict[str, object], why: str
) -> None:
    ended = machine.everstep("run", str(document(tmp_path, **spec)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "slot 0 cannot start its ranks: " in ended.stdout
    assert why in ended.stdout
    assert "restart" not in ended.stdout
    assert machine.processes() == []


@pytest.mark.long
def test_a_mistyped_workdir_is_never_made(machine: Machine, tmp_path: Path) -> None:
    spec = {"workdir": "mistyped", "model_dir": "out", "checkpoints": {"path": "out/saved"}}
    ended = machine.everstep("run", str(document(tmp_path, **spec)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"the workdir {tmp_path}/mistyped is no folder" in ended.stdout
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["python3", "nosuch.py"], "nosuch.py': [Errno 2] No such file or directory"),
        (["python3", "-m", "nosuch"], "No module named nosuch"),
        ("nosuchprog --steps 5", "nosuchprog: not found"),
    ],
)
def test_a_script_that_is_not_there_fails_the_job_at_once_in_the_words_of_its_interpreter(
    machine: Machine, tmp_path: Path, command: object, why: str
) -> None:
    ended = machine.everstep("run", str(document(tmp_path, command=command)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert why in ended.stdout.splitlines()[-1]
    assert "restart" not in ended.stdout
    assert machine.processes() == []


@pytest.mark.long
def test_a_folder_that_cannot_be_written_is_named_and_not_waited_for_without_end(
    machine: Machine, tmp_path: Path
) -> None:
    spec = {"model_dir": "/proc/out", "limits": {"requeue_s": 4}}
    ended = machine.everstep("run", str(document(tmp_path, **spec)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    why = "/proc/out: No such file or directory"
    assert f"the storage: {why}" in ended.stdout, "what it waits for"
    assert f"could not be written for 4 s: {why}" in ended.stdout
    assert machine.processes() == []


@pytest.mark.long
@pytest.mark.parametrize("key", ["model_dir", "checkpoints", "workdir"])
@pytest.mark.parametrize("what", ["file", "link"])
def test_what_is_in_the_place_of_a_folder_ends_the_job_at_once(
    machine: Machine, tmp_path: Path, key: str, what: str
) -> None:
    place = tmp_path / "place"
    if what == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path / "nowhere")
    spec = {key: {"path": str(place)} if key == "checkpoints" else str(place)}
    if key == "workdir":  # of a job that has no other folder, which its rank alone enters
        spec["model_dir"] = "out"
    ended = machine.everstep("run", str(document(tmp_path, **spec)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"{place} is " in ended.stdout
    assert "restart" not in ended.stdout
    assert machine.processes() == []
