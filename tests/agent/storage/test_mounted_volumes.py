"""A volume that is mounted inside `model_dir` and vanishes: nothing is written in its place.

Real mounts, so as root alone.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.agent import commands
from everstep.agent.observing.saves import MountedVolume
from everstep.agent.storage import fence, fence_writing, releasing
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, Refused, is_running, until
from tests.support.patience import HUNG_S


class Volume:
    """A volume, and the folder inside `model_dir` at which it is mounted."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "model"
        self.saved = self.model / "saved"
        self._content = folder / "volume"
        self.saved.mkdir(parents=True)
        self._content.mkdir()
        run("mount", "-t", "tmpfs", "everstep", str(self._content))
        self.mount()

    def mount(self) -> None:
        run("mount", "--bind", str(self._content), str(self.saved))

    def unmount(self) -> None:
        run("umount", "--lazy", str(self.saved))

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.unmount()
        with contextlib.suppress(subprocess.CalledProcessError):
            run("umount", "--lazy", str(self._content))

    @property
    def folders(self) -> list[str]:
        return [str(self.model), str(self.saved)]

    def fence(self, generation: int, *, saves_in: Path | None = None) -> wire.FenceAnswer:
        saved = str(saves_in or self.saved)
        folders = [str(self.model), saved]
        order = {"generation": generation, "run": "r1", "cluster": "", "folders": folders}
        order |= {"begins": {saved: "main"}, "left": [] if saves_in is None else [str(self.saved)]}
        return fence_writing.write(commands.read(order, wire.FenceCommand), "demo")

    def generation(self, folder: Path) -> int:
        return fence.read(str(folder))["demo", ""].generation


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    volume = Volume(tmp_path)
    yield volume
    volume.remove()


def test_no_fence_is_written_while_the_volume_is_missing(volume: Volume) -> None:
    volume.fence(1)
    volume.unmount()
    with pytest.raises(OSError, match=f"{volume.saved}: the volume that was mounted there is miss"):
        volume.fence(2)
    assert list(volume.saved.iterdir()) == []
    assert volume.generation(volume.model) == 1
    volume.mount()
    assert fence_writing.is_written(volume.fence(2))
    assert volume.generation(volume.saved) == volume.generation(volume.model) == 2


def test_a_phase_that_saves_elsewhere_leaves_the_volume_named(volume: Volume) -> None:
    volume.fence(1)
    volume.fence(2, saves_in=volume.model / "other")
    volume.unmount()
    with pytest.raises(OSError, match="the volume that was mounted there is missing"):
        volume.fence(3)


def test_a_folder_that_was_removed_from_its_volume_is_made_again(volume: Volume) -> None:
    """The volume is mounted: its user removed the checkpoints to begin again."""
    saved = volume.saved / "run"
    volume.fence(1, saves_in=saved)
    shutil.rmtree(saved)
    assert fence_writing.is_written(volume.fence(2, saves_in=saved))
    assert volume.generation(saved) == 2


def test_what_was_moved_to_the_folder_of_the_volume_goes_on_there(volume: Volume) -> None:
    """The fence moved too, so the job saves there from now on."""
    volume.fence(1)
    run("cp", "-r", str(volume.saved), f"{volume.model}/copy")
    volume.unmount()
    with pytest.raises(OSError, match="if no volume is wanted there, copy its files with `"):
        volume.fence(2)
    run("cp", "-r", f"{volume.model}/copy/.everstep", str(volume.saved))
    assert fence_writing.is_written(volume.fence(2))


def test_a_volume_that_is_lost_is_replaced_by_the_fence_of_model_dir(volume: Volume) -> None:
    """There is nothing to copy from any more; the folder is a plain one from then on."""
    volume.fence(1)
    volume.remove()
    run("cp", "-r", f"{volume.model}/.everstep", str(volume.saved))
    assert fence_writing.is_written(volume.fence(2))
    shutil.rmtree(volume.saved)
    assert fence_writing.is_written(volume.fence(3))


def test_no_rank_is_started_where_the_volume_is_missing(pod: Pod, volume: Volume) -> None:
    """This agent may be on another node than the one that wrote the fence."""
    volume.fence(1)
    volume.unmount()
    with pytest.raises(Refused, match="the volume that was mounted there is missing"):
        pod.run(FOREVER, model_dir=str(volume.model), checkpoints_path=str(volume.saved))
    assert pod.marked() == []
    assert list(volume.saved.iterdir()) == []


def test_a_volume_that_vanishes_from_ranks_that_train_is_a_fault(pod: Pod, volume: Volume) -> None:
    volume.fence(1)
    (rank,) = pod.runs(
        FOREVER, model_dir=str(volume.model), checkpoints_path=str(volume.saved), fence_s=60.0
    )
    volume.unmount()
    state = pod.until(lambda state: state["facts"])
    (fact,) = state["facts"]
    assert fact["kind"] == "storage.missing"
    assert f"{volume.saved}: the volume that was mounted there is missing" in fact["message"]
    assert is_running(rank), "the job decides"
    assert list(volume.saved.iterdir()) == []


def test_a_volume_that_is_missing_is_not_released_and_is_named(volume: Volume) -> None:
    """Its fence refuses the next job that saves there, so that it is named as not released."""
    volume.fence(1)
    order = {"job": "demo", "cluster": "", "generation": 1, "folders": volume.folders}
    command: wire.ReleaseCommand = commands.read(order, wire.ReleaseCommand)
    volume.unmount()
    problems = releasing.release(command, within_s=HUNG_S)
    assert list(problems) == [str(volume.saved)]
    assert "the volume that was mounted there is missing" in problems[str(volume.saved)]
    volume.mount()
    assert releasing.release(command, within_s=HUNG_S) == {}
    assert fence.read(str(volume.saved))["demo", ""].released


def test_a_folder_beside_storage_that_hangs_is_released(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, ends = tmp_path / "second", threading.Event()
    folders = [str(volume.model), str(second)]
    volume.fence(1)
    fence.write(str(second), fence.Fence("demo", "r1", "", 1))
    read = fence.read

    def hang(folder: str) -> dict[fence.FenceOwner, fence.Fence]:
        if folder == str(volume.model):
            ends.wait()
        return read(folder)

    monkeypatch.setattr(fence, "read", hang)
    order = {"job": "demo", "cluster": "", "generation": 1, "folders": folders}
    command: wire.ReleaseCommand = commands.read(order, wire.ReleaseCommand)
    problems = releasing.release(command, within_s=1.0)
    ends.set()
    assert list(problems) == [str(volume.model)]
    assert read(str(second))["demo", ""].released


def test_a_newer_fence_in_model_dir_ends_ranks_whose_volume_vanished(
    pod: Pod, volume: Volume
) -> None:
    volume.fence(1)
    (rank,) = pod.runs(
        FOREVER, model_dir=str(volume.model), checkpoints_path=str(volume.saved), fence_s=60.0
    )
    volume.unmount()
    fence.write(str(volume.model), fence.Fence("demo", "r1", "", 2))
    until(lambda: not is_running(rank), what="the end of the rank")


def test_a_volume_is_newly_missing_once_and_again_after_it_was_back(volume: Volume) -> None:
    below = volume.saved / "ckpt"
    below.mkdir()
    watch = MountedVolume(str(below))
    assert not watch.is_newly_missing()
    volume.unmount()
    assert [watch.is_newly_missing() for _ in range(3)] == [True, False, False]
    volume.mount()
    assert not watch.is_newly_missing()
    volume.unmount()
    assert watch.is_newly_missing()


def test_a_volume_that_a_link_no_longer_leads_to_is_not_missed(volume: Volume) -> None:
    other, link = volume.model / "other", volume.model / "newest"
    other.mkdir()
    link.symlink_to(volume.saved)
    watch = MountedVolume(str(link))
    assert not watch.is_newly_missing()
    link.unlink()
    link.symlink_to(other)
    assert not watch.is_newly_missing()
    volume.unmount()
    assert not watch.is_newly_missing()


def test_a_volume_that_is_mounted_inside_another_one_later_is_missed(volume: Volume) -> None:
    inner = volume.saved / "inner"
    inner.mkdir()
    watch = MountedVolume(str(inner))
    assert not watch.is_newly_missing()
    run("mount", "-t", "tmpfs", "everstep", str(inner))
    assert not watch.is_newly_missing()
    run("umount", "--lazy", str(inner))
    assert watch.is_newly_missing()
