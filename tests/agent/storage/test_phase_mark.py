"""Which checkpoints of a folder a phase saved itself."""

from __future__ import annotations

import os
from pathlib import Path

from everstep.agent.storage import phase_mark
from everstep.agent.storage.checkpoints import CheckpointWatch, scan

PHASE, LATER = "demo/main/1.000", "demo/more/9.000"
OLD_S = 100.0


def saved(folder: Path, step: int, *, seconds_ago: float = 0.0) -> None:
    path = folder / f"step-{step}.json"
    path.write_text("{}")
    at = path.stat().st_mtime - seconds_ago
    os.utime(path, (at, at))


def steps(folder: Path, phase: str | None) -> list[int | None]:
    return [one["step"] for one in scan(str(folder), phase=phase, is_over=True)]


def test_what_was_there_before_the_phase_began_is_not_its_own(tmp_path: Path) -> None:
    saved(tmp_path, 100, seconds_ago=OLD_S)
    phase_mark.ensure(str(tmp_path), PHASE)
    saved(tmp_path, 10)
    assert steps(tmp_path, PHASE) == [10]
    assert steps(tmp_path, None) == [100, 10]
    watch = CheckpointWatch(str(tmp_path), "auto", lambda _: False, None, PHASE)
    watch.newest(0.0)
    newest = watch.newest(60.0)
    assert newest is not None
    assert newest["step"] == 10


def test_a_step_that_was_there_and_is_saved_again_is_its_own(tmp_path: Path) -> None:
    saved(tmp_path, 10, seconds_ago=OLD_S)
    phase_mark.ensure(str(tmp_path), PHASE)
    assert steps(tmp_path, PHASE) == []
    saved(tmp_path, 10)
    assert steps(tmp_path, PHASE) == [10]


def test_a_phase_begins_once(tmp_path: Path) -> None:
    phase_mark.ensure(str(tmp_path), PHASE)
    mark = tmp_path / phase_mark.MARK
    os.utime(mark, (1.0, 1.0))
    phase_mark.ensure(str(tmp_path), PHASE)
    assert phase_mark.began(str(tmp_path), PHASE) == 1.0
    phase_mark.ensure(str(tmp_path), LATER)
    assert phase_mark.began(str(tmp_path), LATER) != 1.0


def test_where_the_mark_is_missing_or_another_phase_s_everything_counts(tmp_path: Path) -> None:
    saved(tmp_path, 100, seconds_ago=OLD_S)
    assert steps(tmp_path, PHASE) == [100]
    phase_mark.ensure(str(tmp_path), LATER)
    assert steps(tmp_path, PHASE) == [100]


def test_a_folder_that_is_not_there_yet_is_made_for_the_mark(tmp_path: Path) -> None:
    phase_mark.ensure(str(tmp_path / "new"), PHASE)
    assert phase_mark.began(str(tmp_path / "new"), PHASE) is not None
