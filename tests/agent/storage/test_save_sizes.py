"""A save that is much smaller than those before it is doubted, and a script that saves less is believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everstep.agent.storage import save_records
from everstep.agent.storage.checkpoints import scan
from everstep.agent.storage.save_records import SaveRecord, SlotRecord
from everstep.agent.storage.save_states import RENAMED

WHOLE, CUT = 600_050, 126_976


@pytest.mark.parametrize(
    ("sizes", "doubt"),
    [
        ((WHOLE, WHOLE, CUT), "it has 126,976 bytes where step_2.dat has 600,050"),
        ((WHOLE, CUT), "it has 126,976 bytes where step_1.dat has 600,050"),
        ((WHOLE, WHOLE, CUT, 4_096), "it has 4,096 bytes where step_2.dat has 600,050"),
        ((WHOLE, 0), "it is empty"),
        ((0,), "it is empty"),
        ((WHOLE, WHOLE // 2 + 100), ""),
        ((CUT, WHOLE), ""),
        ((CUT,), ""),
        ((WHOLE, CUT, CUT), ""),
    ],
)
def test_a_save_is_doubted_if_it_is_less_than_half_as_large_as_one_before_it(
    tmp_path: Path, sizes: tuple[int, ...], doubt: str
) -> None:
    for step, size in enumerate(sizes, start=1):
        path = tmp_path / f"step_{step}.dat"
        path.write_bytes(b"x" * size)
        os.utime(path, (1_000, 1_000))
    newest, *_ = scan(str(tmp_path))
    assert (newest["step"], newest["doubt"]) == (len(sizes), doubt)
    assert newest["good"] is not bool(doubt)
    assert newest["is_sure"] is not bool(doubt)


def test_a_file_that_was_renamed_into_place_is_believed_whatever_its_size(tmp_path: Path) -> None:
    for step, size in ((1, WHOLE), (2, CUT)):
        (tmp_path / f"step_{step}.dat").write_bytes(b"x" * size)
    last = "step_2.dat"
    saves = {last: SaveRecord(RENAMED, save_records.print_of(tmp_path / last))}
    save_records.write(tmp_path, 0, SlotRecord("demo", 1, "here", is_over=True, saves=saves))
    newest, *_ = scan(str(tmp_path))
    assert (newest["step"], newest["good"]) == (2, True)


@pytest.mark.parametrize("name", ["best_step_2.dat", "step_2.weights"])
def test_a_save_is_not_compared_with_one_of_another_kind(tmp_path: Path, name: str) -> None:
    for other, size in (("step_1.dat", WHOLE), (name, CUT)):
        (tmp_path / other).write_bytes(b"x" * size)
        os.utime(tmp_path / other, (1_000, 1_000))
    newest, *_ = scan(str(tmp_path))
    assert (Path(newest["path"]).name, newest["good"]) == (name, True)
