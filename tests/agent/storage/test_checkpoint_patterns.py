"""A document's own pattern says what is a checkpoint, and from which step: wherever names are read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.storage import checkpoint_names, set_aside
from everstep.agent.storage.checkpoints import CheckpointWatch, scan
from everstep.protocol import wire
from tests.agent.pod import Pod, Refused

STATE = r"state_(?P<step>\d+)"
TEMPLATE = r"^llama_iter1_(?P<step>\d+)(?:_(?P<again>\d{8}_\d{6}))?\.mdl$"


def put(folder: Path, *names: str) -> None:
    """Files that have settled."""
    old = time.time() - 5
    for name in names:
        (folder / name).write_text("{}")
        os.utime(folder / name, (old, old))


def checkpoint_steps(folder: Path, pattern: str | None) -> list[tuple[str, int | None]]:
    return [(Path(s["path"]).name, s["step"]) for s in scan(str(folder), pattern=pattern)]


def test_names_that_the_pattern_finds_are_checkpoints_and_no_others(tmp_path: Path) -> None:
    put(tmp_path, "state_9.bin.json", "state_10.json", "step_99.json", "readme.json")
    assert checkpoint_steps(tmp_path, STATE) == [("state_10.json", 10), ("state_9.bin.json", 9)]
    assert checkpoint_steps(tmp_path, None) == [("step_99.json", 99)]


def test_of_two_saves_of_one_step_the_later_is_the_newer(tmp_path: Path) -> None:
    names = ["llama_iter1_20.mdl", "llama_iter1_20_20260102_030405.mdl", "llama_iter1_5.mdl"]
    for name in names:
        (tmp_path / name).touch()
    read = [checkpoint_names.read(name, TEMPLATE) for name in names]
    assert [name and name.step for name in read] == [20, 20, 5]
    assert sorted(names, key=lambda n: checkpoint_names.read(n, TEMPLATE) or (), reverse=True) == [
        *(names[1], names[0], names[2])
    ]


@pytest.mark.parametrize("pattern", [None, r"(?P<step>\d+)"])
def test_a_number_that_no_training_reaches_is_no_step(pattern: str | None) -> None:
    assert checkpoint_names.read(f"checkpoint_{2**53}.pt", pattern) is not None
    assert checkpoint_names.read(f"checkpoint_{2**53 + 1}.pt", pattern) is None
    assert checkpoint_names.read(f"checkpoint_{'7' * 32}", pattern) is None


def test_a_watch_looks_for_the_same_names(tmp_path: Path) -> None:
    put(tmp_path, "state_3.json", "step_99.json")
    newest = CheckpointWatch(str(tmp_path), "auto", lambda _: False, STATE).newest(0.0)
    assert newest is not None
    assert newest["step"] == 3


def test_newer_ones_are_set_aside_by_the_same_names(tmp_path: Path) -> None:
    put(tmp_path, "state_3.json", "state_4.json", "state_4.txt", "step_4.json")
    (tmp_path / "latest").write_text("state_4")
    moved, why = set_aside.ensure(
        tmp_path,
        [str(tmp_path / "state_4.json")],
        resume=str(tmp_path / "state_3.json"),
        generation=2,
        require_stopped=lambda: None,
        pattern=STATE,
    )
    assert not why
    assert [Path(path).name for path in moved] == ["2-state_4.json", "2-state_4.txt"]
    assert (tmp_path / "step_4.json").exists()
    assert (tmp_path / "latest").read_text() == "state_3.json"


def test_an_agent_reads_names_by_the_pattern_of_its_orders(pod: Pod, tmp_path: Path) -> None:
    folder = tmp_path / "saves"
    folder.mkdir()
    put(folder, "state_3.json", "step_99.json")
    checkpoint_options: dict[str, Any] = {
        "checkpoints_path": str(folder),
        "checkpoints_pattern": STATE,
    }
    pod.runs("import time; time.sleep(600)", **checkpoint_options)
    state = pod.until(lambda state: state["run"] and state["run"]["checkpoint"])
    assert state["run"] is not None
    assert state["run"]["checkpoint"] is not None
    assert state["run"]["checkpoint"]["step"] == 3
    query = {"path": str(folder), "pattern": STATE, "is_over": False}
    listed = pod.ask("POST", wire.CHECKPOINTS, query)["checkpoints"]
    assert [saved["step"] for saved in listed] == [3]
    with pytest.raises(Refused, match="it has no group step"):
        pod.run("", generation=2, checkpoints_pattern="state")
