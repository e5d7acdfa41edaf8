"""What the records of several agents say together, and that only what they saw whole counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everstep.agent.storage import save_records
from everstep.agent.storage.checkpoints import LEFT_OPEN, scan
from everstep.agent.storage.save_records import Print, SaveRecord, SlotRecord
from everstep.agent.storage.save_states import CLOSED, LEFT, OPEN, RENAMED, UNWATCHED
from everstep.protocol import wire

FILE, NOW, BEFORE = "step_5.bin", Print(1, 10, 5), Print(1, 9, 4)
NO_SAVES: dict[str, SaveRecord] = {}


def record(
    state: str | None,
    content: Print | None = NOW,
    *,
    generation: int = 1,
    kernel: str = "here",
    is_over: bool = False,
    began_ns: int | None = None,
    job: str = "demo",
) -> SlotRecord:
    saves = NO_SAVES if state is None else {FILE: SaveRecord(state, content)}
    return SlotRecord(job, generation, kernel, is_over, saves, began_ns)


def left_open(began_ns: int | None = 1) -> SlotRecord:
    return record(OPEN, None, began_ns=began_ns)


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([], None),
        ([record(RENAMED)], RENAMED),
        ([record(RENAMED, BEFORE)], None),
        ([record(CLOSED, None)], None),
        ([record(CLOSED), record(CLOSED)], CLOSED),
        ([record(CLOSED), record(None)], None),
        ([record(CLOSED), record(OPEN, None)], OPEN),
        ([record(CLOSED), record(None, is_over=True)], CLOSED),
        ([record(CLOSED), record(None, kernel="elsewhere")], CLOSED),
        ([record(CLOSED), record(None, generation=2)], CLOSED),
        ([record(RENAMED), record(None)], RENAMED),
        ([record(CLOSED), record(UNWATCHED, is_over=True)], None),
        ([record(CLOSED), record(UNWATCHED, BEFORE, is_over=True)], CLOSED),
        ([record(CLOSED), record(UNWATCHED, generation=2)], None),
        ([record(RENAMED), record(UNWATCHED)], RENAMED),
        ([record(CLOSED), record(LEFT, generation=2)], OPEN),
        ([record(LEFT)], OPEN),
        ([record(LEFT, BEFORE)], None),
        ([record(LEFT, BEFORE), record(RENAMED)], RENAMED),
        ([record(OPEN, None)], OPEN),
        # A later run, by another slot, began before the last change (5), after it, or at an unknown time.
        ([left_open(), record(None, generation=2, began_ns=4)], None),
        ([left_open(), record(None, job="next", began_ns=4)], None),
        ([left_open(), record(None, generation=2, began_ns=5)], OPEN),
        ([left_open(), record(None, generation=2)], OPEN),
        ([left_open(None), record(None, generation=2, began_ns=4)], OPEN),
        ([left_open(4), record(None, generation=2, began_ns=3)], OPEN),
        # The same run, of which another slot began later.
        ([left_open(), record(None, began_ns=4)], OPEN),
        # What the later run leaves open itself.
        ([left_open(), record(OPEN, None, generation=2, began_ns=4)], OPEN),
    ],
)
def test_a_closed_save_is_whole_if_all_who_saw_it_agree(
    records: list[SlotRecord], state: str | None
) -> None:
    assert save_records.state(records, FILE, NOW) == state


def test_a_record_that_is_no_record_says_nothing_and_the_others_count(tmp_path: Path) -> None:
    saves = tmp_path / ".everstep" / save_records.FOLDER
    save_records.write(tmp_path, 7, record(RENAMED))
    for slot, text in enumerate(('{"saves": 3}', "[", '{"job": "demo"}', "")):
        (saves / f"{slot}.json").write_text(text)
    (saves / "link.json").symlink_to(saves / "7.json")
    assert save_records.read(tmp_path) == {7: record(RENAMED)}


def test_a_record_keeps_the_newest_saves_alone(tmp_path: Path) -> None:
    saves = {f"step_{n}.bin": SaveRecord(RENAMED, NOW) for n in range(1_000)}
    save_records.write(tmp_path, 0, record(None)._replace(saves=saves))
    recorded = save_records.read(tmp_path)[0].saves
    assert len(recorded) == save_records.SAVES_MOST
    assert "step_999.bin" in recorded


def test_what_a_killed_agent_left_unfinished_goes_with_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (child := os.fork()) == 0:
        monkeypatch.setattr(os, "rename", lambda *_, **__: os._exit(9))
        save_records.write(tmp_path, 3, record(CLOSED))
    os.waitpid(child, 0)
    folder = tmp_path / wire.FENCE_FOLDER / save_records.FOLDER
    assert [path.suffix for path in folder.iterdir()] == [".tmp"]
    save_records.write(tmp_path, 3, record(RENAMED))
    assert [path.name for path in folder.iterdir()] == ["3.json"]


def test_the_folder_of_the_saves_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_records.write(tmp_path / "gone", 0, record(None))


def test_a_checkpoint_with_fewer_files_than_the_one_before_it_is_not_taken_for_whole(
    tmp_path: Path,
) -> None:
    """The other rank was killed before it could rename its file."""
    for name in ("step_4.rank0.bin", "step_4.rank1.bin", "step_5.rank0.bin"):
        (tmp_path / name).write_bytes(b"x")
    last = "step_5.rank0.bin"
    saves = {last: SaveRecord(RENAMED, save_records.print_of(tmp_path / last))}
    save_records.write(tmp_path, 0, record(None)._replace(saves=saves))
    newest, _ = scan(str(tmp_path))
    assert (newest["step"], newest["good"], newest["is_sure"]) == (5, False, False)


@pytest.mark.parametrize("state", [LEFT, RENAMED])
def test_a_checkpoint_of_several_files_is_whole_if_each_of_them_is(
    tmp_path: Path, state: str
) -> None:
    """Their times say nothing: both changed just now."""
    names = ("step_5.model.bin", "step_5.optimizer.bin")
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    contents = [save_records.print_of(tmp_path / name) for name in names]
    states = (RENAMED, state)
    saves = {
        name: SaveRecord(state, content)
        for name, state, content in zip(names, states, contents, strict=True)
    }
    save_records.write(tmp_path, 0, record(None)._replace(saves=saves))
    (saved,) = scan(str(tmp_path))
    assert (saved["good"], saved["doubt"]) == ((False, LEFT_OPEN) if state == LEFT else (True, ""))
