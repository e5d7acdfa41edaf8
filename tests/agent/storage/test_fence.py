"""The fence of a folder: what may stand there, and who may write it when."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent.storage import fence
from everstep.agent.storage.fence import Fence
from tests.support.patience import HUNG_S

OUR_FENCE, OTHER_FENCE = Fence("demo", "r1", "here", 3), Fence("other", "r9", "there", 5)


def newest(folder: Path, of: Fence = OUR_FENCE) -> int:
    return fence.read(str(folder))[of.owner].generation


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / ".everstep").iterdir())


# -- What stands there --------------------------------------------------------------------------


def test_where_none_was_written_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fence.read(str(tmp_path))


def test_a_generation_is_there_for_us_and_for_people_and_older_ones_go(tmp_path: Path) -> None:
    for generation in (1, 2):
        fence.write(str(tmp_path), OUR_FENCE._replace(generation=generation))
    result = fence.write(str(tmp_path), OUR_FENCE._replace(generation=5))
    assert json.loads(result.read_text())["generation"] == newest(tmp_path) == 5
    newer_fence = OUR_FENCE._replace(generation=5)
    assert files(tmp_path) == ["generation", newer_fence.name, "lock"]


def test_nothing_older_is_put_back(tmp_path: Path) -> None:
    fence.write(str(tmp_path), OUR_FENCE)
    result = fence.write(str(tmp_path), OUR_FENCE._replace(generation=2))
    assert json.loads(result.read_text())["generation"] == newest(tmp_path) == 3


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(700 * 1024**2)


WHOSE = '{"job": "demo", "run": "r1", "cluster": "here", "generation": '


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "is no plain file"),
    "folder": (Path.mkdir, "is no plain file"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "is no plain file"),
    "link": (lambda path: path.symlink_to(__file__), "is no plain file"),
    "huge": (sparse, "is larger than 4096 bytes"),
    "empty": (text(""), "is no JSON object of a fence"),
    "number": (text("7"), "is no JSON object of a fence"),
    "deep": (text("[" * 4000), "is no JSON object of a fence"),
    "nobody's": (text('{"generation": 7}'), "does not name its job, run and cluster as texts"),
    "infinity": (text(WHOSE + "Infinity}"), "has no generation from 1 to 9007199254740991"),
    "float": (text(WHOSE + "1e400}"), "has no generation"),
    "bool": (text(WHOSE + "true}"), "has no generation"),
    "nought": (text(WHOSE + "0}"), "has no generation"),
    "too large": (text(WHOSE + f"{2**53}}}"), "has no generation"),
    "word": (text(WHOSE + '"7"}'), "has no generation"),
}


@pytest.mark.parametrize("name", ["generation", OUR_FENCE._replace(generation=9).name])
@pytest.mark.parametrize("how", SPOILED)
def test_anything_else_is_told_and_neither_waited_for_nor_believed(
    tmp_path: Path, name: str, how: str
) -> None:
    spoil, error_text = SPOILED[how]
    (tmp_path / ".everstep").mkdir()
    spoil(tmp_path / ".everstep" / name)
    for attempt in (
        lambda: fence.read(str(tmp_path)),
        lambda: fence.write(str(tmp_path), OUR_FENCE),
    ):
        with pytest.raises(fence.SpoiledFence, match=error_text) as spoiled:
            attempt()
        assert f"fence is damaged: .everstep/{name}" in str(spoiled.value)


@pytest.mark.parametrize(
    "spoil", [Path.touch, lambda path: path.symlink_to("/tmp")], ids=["file", "link"]
)
def test_a_folder_of_the_fence_that_is_none_is_told(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(tmp_path / ".everstep")
    with pytest.raises(fence.SpoiledFence, match=r"\.everstep is no folder"):
        fence.read(str(tmp_path))


# -- Writers that are stopped ---------------------------------------------------------------------

STOPS_BEFORE = """
import os, signal, sys
from everstep.agent.storage import fence
before, calls = sys.argv[2], [0]
def hook(event, args):
    if event in ("os.rename", "os.link", "fcntl.flock") and not calls[0]:
        if event == before:
            calls[0] = 1
            os.kill(os.getpid(), signal.SIGSTOP)
sys.addaudithook(hook)
fence.write(sys.argv[1], fence.Fence("demo", "r1", "here", 3))
"""


@pytest.mark.parametrize("before", ["os.link", "fcntl.flock", "os.rename"])
def test_a_writer_that_was_stopped_puts_nothing_back(tmp_path: Path, before: str) -> None:
    if before != "os.link":  # that is for the first generation only
        fence.write(str(tmp_path), OUR_FENCE._replace(generation=2))
    command = [sys.executable, "-c", STOPS_BEFORE, str(tmp_path), before]
    writer = subprocess.Popen(command)
    try:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        fence.write(str(tmp_path), OUR_FENCE._replace(generation=4))
        generation = json.loads(fence.path_in(str(tmp_path)).read_text())["generation"]
    finally:
        writer.send_signal(signal.SIGCONT)
    assert writer.wait(HUNG_S) == 0
    assert newest(tmp_path) == 4
    assert json.loads(fence.path_in(str(tmp_path)).read_text())["generation"] >= generation


def test_two_writers_of_one_generation_do_not_disturb_each_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPS_BEFORE, str(tmp_path), "never"]
    writers = [subprocess.Popen(command) for _ in range(4)]
    assert [writer.wait(HUNG_S) for writer in writers] == [0] * 4
    assert newest(tmp_path) == 3
    assert files(tmp_path) == ["generation", OUR_FENCE.name, "lock"]


# -- Two jobs -------------------------------------------------------------------------------------


def test_a_folder_of_a_job_that_has_not_ended_is_not_given_to_another(tmp_path: Path) -> None:
    fence.write(str(tmp_path), OUR_FENCE)
    before = files(tmp_path)
    with pytest.raises(fence.FolderIsTaken, match="belongs to job demo"):
        fence.write(str(tmp_path), OTHER_FENCE)
    assert files(tmp_path) == before
    assert OTHER_FENCE.owner not in fence.read(str(tmp_path))


def test_the_same_name_on_another_cluster_is_another_job(tmp_path: Path) -> None:
    fence.write(str(tmp_path), OUR_FENCE)
    with pytest.raises(fence.FolderIsTaken):
        fence.write(str(tmp_path), OUR_FENCE._replace(cluster="there", generation=9))


def test_what_came_later_does_not_concern_who_came_first(tmp_path: Path) -> None:
    """The other one was stopped after it had entered itself, before it saw that it was second."""
    fence.write(str(tmp_path), OUR_FENCE)
    stray = OTHER_FENCE._replace(generation=8)
    (tmp_path / ".everstep" / stray.name).write_text(json.dumps(stray._asdict()))
    for generation in (4, 9, 12):
        fence.write(str(tmp_path), OUR_FENCE._replace(generation=generation))
    assert newest(tmp_path) == 12
    with pytest.raises(fence.FolderIsTaken):
        fence.write(str(tmp_path), stray._replace(generation=13))


@pytest.mark.parametrize("before", ["os.link", "os.rename"])
def test_of_two_that_come_at_once_never_both_have_the_folder(tmp_path: Path, before: str) -> None:
    """The first is stopped at each of its steps while the second comes."""
    (tmp_path / ".everstep").mkdir()
    command = [sys.executable, "-c", STOPS_BEFORE, str(tmp_path), before]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED)
        second = True
        try:
            fence.write(str(tmp_path), OTHER_FENCE._replace(generation=1))
        except fence.FolderIsTaken:
            second = False
    finally:
        first.send_signal(signal.SIGCONT)
    has_first = first.wait(HUNG_S) == 0
    assert (has_first, second) != (True, True)
    held = [one for one in fence.read(str(tmp_path)).values() if one.holds]
    assert [one.owner for one in held] == [OUR_FENCE.owner] * has_first + [
        OTHER_FENCE.owner
    ] * second


def test_who_was_killed_while_it_came_comes_again(tmp_path: Path) -> None:
    (tmp_path / ".everstep").mkdir()
    (tmp_path / ".everstep" / OUR_FENCE.name).write_text(json.dumps(OUR_FENCE._asdict()))
    with pytest.raises(fence.FolderIsTaken):
        fence.write(str(tmp_path), OTHER_FENCE)
    fence.write(str(tmp_path), OUR_FENCE)
    assert fence.read(str(tmp_path))[OUR_FENCE.owner].is_held


def test_a_released_folder_is_the_next_ones_and_may_be_taken_back_later(tmp_path: Path) -> None:
    fence.write(str(tmp_path), OUR_FENCE)
    fence.release(str(tmp_path), OUR_FENCE.owner, up_to=3)
    fence.write(str(tmp_path), OTHER_FENCE)
    with pytest.raises(fence.FolderIsTaken, match="belongs to job other"):
        fence.write(str(tmp_path), OUR_FENCE._replace(generation=6))
    fence.release(str(tmp_path), OTHER_FENCE.owner, up_to=5)
    fence.write(str(tmp_path), OUR_FENCE._replace(generation=6))
    assert newest(tmp_path) == 6


def test_an_end_that_could_not_be_shown_is_not_forgotten(tmp_path: Path) -> None:
    """A writer that is stopped while it holds the lock leaves the visible fence as it is."""
    fence.write(str(tmp_path), OUR_FENCE)
    lock = os.open(tmp_path / ".everstep" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        fence.release(str(tmp_path), OUR_FENCE.owner, up_to=3)
        fence.write(str(tmp_path), OTHER_FENCE)
        fence.release(str(tmp_path), OTHER_FENCE.owner, up_to=5)
    finally:
        os.close(lock)
    fence.write(str(tmp_path), Fence("third", "r1", "here", 6))
    assert newest(tmp_path, Fence("third", "r1", "here", 6)) == 6


def test_a_job_that_was_begun_again_meanwhile_keeps_its_folder(tmp_path: Path) -> None:
    fence.write(str(tmp_path), OUR_FENCE._replace(generation=4))
    fence.release(str(tmp_path), OUR_FENCE.owner, up_to=3)
    with pytest.raises(fence.FolderIsTaken):
        fence.write(str(tmp_path), OTHER_FENCE)


def test_a_folder_that_was_left_ends_older_generations_and_keeps_nobody_out(tmp_path: Path) -> None:
    fence.write(str(tmp_path), OUR_FENCE)
    fence.outdate(str(tmp_path), OUR_FENCE._replace(generation=4))
    assert newest(tmp_path) == 4
    fence.write(str(tmp_path), OTHER_FENCE)
    fence.outdate(
        str(tmp_path), OUR_FENCE._replace(generation=7)
    )  # it may still have a process there
    assert newest(tmp_path) == 7
    assert newest(tmp_path, OTHER_FENCE) == 5


def test_an_adopted_job_goes_on_with_the_next_generation(tmp_path: Path) -> None:
    """The word that outdates what its earlier cluster began has that number too, under another name."""
    folder = str(tmp_path)
    fence.write(folder, OUR_FENCE)
    earlier = OUR_FENCE._replace(run="", generation=OUR_FENCE.generation + 1)
    fence.outdate(folder, earlier)
    adopted = OUR_FENCE._replace(cluster="another", generation=earlier.generation)
    assert fence.superseded_by(folder, adopted) == (0, False)
    fence.write(folder, adopted)
    fences = fence.read(folder)
    assert fences[adopted.owner].is_held
    outdated = fences[OUR_FENCE.owner]._replace(written_at=None)
    assert outdated == earlier._replace(released=True, outdated=True)
    another_job = adopted._replace(job="another", generation=1)
    assert fence.superseded_by(folder, another_job)[0] == earlier.generation


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_number_that_another_run_of_the_job_had_is_refused(
    tmp_path: Path, has_ended: bool
) -> None:
    """Its books began again: of two generations with one number none would refuse the other."""
    folder = str(tmp_path)
    fence.write(folder, OUR_FENCE)
    if has_ended:
        fence.release(folder, OUR_FENCE.owner, up_to=OUR_FENCE.generation)
    assert fence.superseded_by(folder, OUR_FENCE) == (0, False)
    later = OUR_FENCE._replace(run="r2")
    assert fence.superseded_by(folder, later) == (OUR_FENCE.generation, not has_ended)
    above = later._replace(generation=OUR_FENCE.generation + 1)
    assert fence.superseded_by(folder, above) == (0, False)


def test_where_a_job_never_wrote_nothing_is_outdated_or_released(tmp_path: Path) -> None:
    fence.outdate(str(tmp_path), OUR_FENCE)
    fence.release(str(tmp_path), OUR_FENCE.owner, up_to=3)
    assert [*tmp_path.iterdir()] == []


def test_an_outdated_generation_stays_outdated_through_later_jobs(tmp_path: Path) -> None:
    """A stopped process of it that continues later must find a generation above its own."""
    folder = str(tmp_path)
    fence.write(folder, OUR_FENCE)
    fence.outdate(folder, OUR_FENCE._replace(run="", generation=4))
    later_jobs = [
        OUR_FENCE._replace(cluster="there"),
        OTHER_FENCE,
        OUR_FENCE._replace(cluster="elsewhere"),
    ]
    for number, job in enumerate(later_jobs):
        for generation in range(10 * number + 5, 10 * number + 9):
            fence.write(folder, job._replace(generation=generation))
            assert newest(tmp_path) == 4
        fence.release(folder, job.owner, up_to=10 * number + 9)
    fence.write(folder, OUR_FENCE._replace(run="r2", generation=40))
    fence.release(folder, OUR_FENCE.owner, up_to=40)
    fence.write(folder, OTHER_FENCE._replace(generation=41))


def test_the_highest_generation_of_a_job_is_the_last_one_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is killed in the middle leaves no lower generation that counts as the newest."""
    folder, fences = str(tmp_path), tmp_path / ".everstep"
    fence.write(folder, OTHER_FENCE)
    fence.release(folder, OTHER_FENCE.owner, up_to=5)
    for generation in (1, 2, 3):
        older = OTHER_FENCE._replace(generation=generation, holds=True)
        (fences / older.name).write_text(json.dumps(older._asdict()))
    removed: list[int] = []
    unlink = Path.unlink

    def note(path: Path, *, missing_ok: bool = False) -> None:
        removed.append(int(path.name.split(".")[1]))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    for generation in (6, 7):
        fence.write(folder, OUR_FENCE._replace(generation=generation))
    assert removed == [1, 2, 3, 5, 6]


def test_outdated_jobs_do_not_fill_a_folder(tmp_path: Path) -> None:
    for generation in range(1, 3 * fence.OUTDATED_MOST, 2):
        job = OUR_FENCE._replace(cluster=f"c{generation}", generation=generation)
        fence.write(str(tmp_path), job)
        fence.outdate(str(tmp_path), job._replace(generation=generation + 1))
    assert len(files(tmp_path)) <= fence.OUTDATED_MOST + 4


def test_a_folder_that_is_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(OSError, match=r"/out is a link to .*/gone, which is not there"):
        fence.write(str(link), OUR_FENCE)
