"""When a fence that is not read ends a generation."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from everstep.agent import commands
from everstep.agent.storage import fence, fence_writing
from everstep.agent.storage.fence import Fence
from everstep.agent.storage.fence_watch import TICK_S, FenceWatch
from everstep.protocol import wire
from tests.agent.pod import until

READINGS = 3


def test_a_reading_that_is_due_comes_before_the_end_though_as_much_time_has_passed(
    tmp_path: Path,
) -> None:
    """No worker polls, and a fence expires sooner than two readings of healthy storage are apart."""
    fence.write(str(tmp_path), Fence("demo", "r1", "", 1))
    was_read = threading.Event()
    watch = FenceWatch(was_read.set)
    settings = {"fence_s": TICK_S, "generation": 1, "unpolled_s": 0.0}
    watch.guard({**settings, "owner": ["demo", ""], "folders": [str(tmp_path)]})
    readings = 0
    while readings < READINGS:  # as a warden looks: when something was read, and once a second
        assert watch.why() is None
        readings += was_read.wait(TICK_S)
        was_read.clear()


def test_a_folder_without_a_fence_of_its_own_stands_for_none_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    """It is inside the first one, whose fence cannot be read: another generation may be in it."""
    saved = tmp_path / "checkpoints"
    saved.mkdir()
    (tmp_path / wire.FENCE_FOLDER).touch()  # not even a folder
    watch = FenceWatch(lambda: None)
    settings = {"fence_s": TICK_S, "generation": 1, "unpolled_s": 0.0}
    watch.guard({**settings, "owner": ["demo", ""], "folders": [str(tmp_path), str(saved)]})
    until(lambda: watch.why() == f"no poll and no fence for {TICK_S:g} s", what="the end")


@pytest.mark.parametrize("is_mounted", [True, False])
def test_a_volume_mounted_inside_the_first_folder_has_a_fence_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mounted: bool
) -> None:
    """Processes that are cut off from the one would write to the other beside a newer generation."""
    model, saved = str(tmp_path / "model"), str(tmp_path / "model" / "saved")

    def volume_of(folder: str) -> int:
        return int(is_mounted and folder == saved)

    monkeypatch.setattr(fence, "volume_of", volume_of)
    order = {"generation": 2, "run": "r1", "cluster": "", "folders": [model, saved]}
    fence_writing.write(commands.read(order, wire.FenceCommand), "demo")
    assert fence.path_in(model).exists()
    assert fence.path_in(saved).exists() == is_mounted


def test_the_volume_of_a_folder_that_is_not_there_yet_is_that_of_the_one_above_it() -> None:
    assert fence.volume_of("/proc/not/there") == fence.volume_of("/proc")
    assert fence.volume_of("/proc/not/there") != fence.volume_of("/")
