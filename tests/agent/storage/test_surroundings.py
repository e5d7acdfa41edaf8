"""A folder is free only if no other living job has a folder above or below it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everstep.agent.storage import fence, surroundings
from everstep.agent.storage.fence import Fence
from everstep.protocol import wire

FIRST = Fence("first", "r", "here", 3)
SECOND = Fence("second", "r", "there", 1)

ROWS = (
    ("a folder inside one of another job", "a", "a/ckpt"),
    ("deep inside one", "a", "a/b/c/d/e/f/g/ckpt"),
    ("a folder that contains one of another job", "a/b/ckpt", "a"),
    ("through a link", "a", "link/ckpt"),
)


@pytest.mark.parametrize(
    ("first", "second"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_folder_in_or_around_one_of_a_living_job_is_taken(
    tmp_path: Path, first: str, second: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    fence.write(str(tmp_path / first), FIRST)
    was_there = (tmp_path / second).is_dir()
    with pytest.raises(fence.FolderIsTaken, match="belongs to job first") as refusal:
        fence.write(str(tmp_path / second), SECOND)
    assert refusal.value.owned == str(tmp_path / first)
    assert (tmp_path / second).is_dir() == was_there, "it is made for no job that is refused"
    assert not was_there or fence.read(str(tmp_path / second)) == {}, "the second job has withdrawn"
    fence.release(str(tmp_path / first), FIRST.owner, up_to=3)
    fence.write(str(tmp_path / second), SECOND)


def test_a_job_may_have_folders_in_each_other_and_folders_beside_those_of_others(
    tmp_path: Path,
) -> None:
    for folder, one in (("a", FIRST), ("a/ckpt", FIRST), ("ab", SECOND), ("b/a", SECOND)):
        fence.write(str(tmp_path / folder), one)
    fence.write(str(tmp_path / "a"), FIRST._replace(generation=4))


def test_a_damaged_fence_above_is_named_and_what_is_no_fence_keeps_no_job_out(
    tmp_path: Path,
) -> None:
    (tmp_path / wire.FENCE_FOLDER).touch()
    (tmp_path / "a" / wire.FENCE_FOLDER).mkdir(parents=True)
    fence.write(str(tmp_path / "a" / "own"), SECOND)
    (tmp_path / "a" / wire.FENCE_FOLDER / wire.FENCE_FILE).touch()
    damaged = f"the fence of {tmp_path / 'a'} is damaged: .everstep/generation is no JSON"
    with pytest.raises(fence.SpoiledFence, match=damaged):
        fence.write(str(tmp_path / "a" / "other"), FIRST)
    assert not (tmp_path / "a" / "other").exists()


def test_of_two_jobs_one_in_the_other_that_enter_at_once_never_both_have_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has entered and not looked around yet, as the second comes."""
    outer, inner = str(tmp_path / "a"), str(tmp_path / "a" / "ckpt")
    (tmp_path / "a" / "ckpt").mkdir(parents=True)
    look_around, have_folders = surroundings.fenced_around, []

    def second_comes(folder: str) -> list[str]:
        monkeypatch.setattr(surroundings, "fenced_around", look_around)
        try_to_enter(inner, SECOND)
        return list(look_around(folder))

    def try_to_enter(folder: str, new: Fence) -> None:
        try:
            fence.write(folder, new)
        except fence.FolderIsTaken:
            return
        have_folders.append(folder)

    monkeypatch.setattr(surroundings, "fenced_around", second_comes)
    try_to_enter(outer, FIRST)
    assert have_folders == [outer]


def test_a_look_below_ends_where_storage_holds_very_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "FOLDERS_MOST", 10)
    for number in range(20):
        (tmp_path / f"{number:02d}" / "deep").mkdir(parents=True)
    looks: list[str] = []
    scan = os.scandir

    def counted(path: str) -> object:
        if Path(path).is_relative_to(tmp_path) and Path(path).name != ".everstep":
            looks.append(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert list(surroundings.fenced_around(str(tmp_path))) == []
    assert len(looks) <= 10
