"""The checkpoints of a run: which of them are its own, and that nothing ends the looks at them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.agent.observing.saves import Saves
from everstep.agent.storage import checkpoints
from everstep.protocol import wire
from everstep.protocol.wire import RunOrder
from tests.agent.pod import Pod
from tests.support.patience import HUNG_S

SLEEPS = "import time\ntime.sleep(600)"


def save(folder: Path, step: int) -> None:
    (folder / f"step-{step}.json").write_text(json.dumps({"step": step}))


def test_a_checkpoint_saved_at_once_is_one_of_this_run(pod: Pod, tmp_path: Path) -> None:
    save(tmp_path, 1)
    pod.runs(SLEEPS, checkpoints_path=str(tmp_path))
    save(tmp_path, 2)
    state = pod.until(lambda s: newest_step(s) == 2)
    assert state["run"] is not None
    assert state["run"]["saved_at"] is not None


def newest_step(state: wire.AgentState) -> int | None:
    run = state["run"]
    return run["checkpoint"]["step"] if run is not None and run["checkpoint"] is not None else None


def test_a_look_that_fails_is_noted_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save(tmp_path, 1)
    notes: list[str] = []
    run = run_that_saves_to(tmp_path)
    saves = Saves(agent_with(notes))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.CheckpointWatch, "newest", lambda *_: 1 / 0)
        follow(saves, run)
    assert vars(run)["checkpoint"] is None
    follow(saves, run)
    assert vars(run)["checkpoint"]["step"] == 1
    assert len(notes) == 1
    assert "ZeroDivisionError" in notes[0]


def test_what_was_saved_is_known_though_its_folder_went_away(tmp_path: Path) -> None:
    """A restart without a checkpoint would start from step 0 in an empty folder."""
    folder = tmp_path / "saves"
    folder.mkdir()
    save(folder, 1)
    run = run_that_saves_to(folder)
    saves = Saves(agent_with([]))
    follow(saves, run)
    folder.rename(tmp_path / "moved")
    follow(saves, run)
    assert vars(run)["checkpoint"]["step"] == 1


def run_that_saves_to(folder: Path) -> Any:
    order = RunOrder(checkpoints_path=str(folder))
    return SimpleNamespace(order=order, checkpoint=None, has_folder=False, generation=1)


def agent_with(notes: list[str]) -> Any:
    return SimpleNamespace(
        loop=SimpleNamespace(hand_over=lambda do: do()),
        note=notes.append,
        publish=lambda: None,
        job="demo",
        slot=0,
        population=SimpleNamespace(is_helper=lambda _: False),
        save_watch=None,
    )


def follow(saves: Saves, run: Any) -> None:
    saves.follow(run)
    assert saves._check is not None
    saves._check.exception(HUNG_S)
