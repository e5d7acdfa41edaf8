"""Where a process ends because its checkpoints cannot be written, the storage is at fault, by its name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.agent.storage import space
from everstep.protocol import wire
from tests.agent.pod import Pod, exits
from tests.agent.storage import layouts
from tests.support.starving import away

ENDS = "import os, sys, time\nprint('step 1', flush=True)\n"
MB = 1024 * 1024


def kinds(state: wire.AgentState) -> list[str]:
    return [fact["kind"] for fact in state["facts"]]


def test_a_folder_of_checkpoints_that_went_away_is_told_with_the_end(
    pod: Pod, tmp_path: Path
) -> None:
    saves = tmp_path / "disk" / "saves"
    saves.mkdir(parents=True)
    layouts.save("lightning", saves, 4)
    script = f"{ENDS}while not os.path.exists('end'): time.sleep(0.01)\nsys.exit(1)"
    pod.runs(script, checkpoints_path=str(saves))
    pod.until(lambda state: state["run"] and state["run"]["checkpoint"])
    with away(saves.parent):
        (pod.home / "end").touch()
        state = pod.until(exits)
        assert kinds(state) == ["storage.missing", "process.exit"]
        assert state["facts"][0]["message"] == f"{saves} is not there any more"


def test_a_folder_that_was_never_there_explains_no_end(pod: Pod, tmp_path: Path) -> None:
    pod.run(f"{ENDS}sys.exit(1)", checkpoints_path=str(tmp_path / "not-yet"))
    assert kinds(pod.until(exits)) == ["process.exit"]


def test_a_sound_folder_explains_no_end(pod: Pod, tmp_path: Path) -> None:
    pod.run(f"{ENDS}sys.exit('No space left on device')", checkpoints_path=str(tmp_path))
    assert kinds(pod.until(exits)) == ["process.exit"]


DISK_FULL_ERROR = "OSError: [Errno 28] No space left on device"


def disk_stat(*, free: int, files: int = 1000, flag: int = 0) -> os.statvfs_result:
    return os.statvfs_result((4096, 1, 10**9, free, free, 10**6, files, files, flag, 255))


@pytest.mark.parametrize(
    ("statvfs", "error_text", "kind"),
    [
        (disk_stat(free=100 * MB), "", None),
        (
            disk_stat(free=100 * MB),
            DISK_FULL_ERROR,
            None,
        ),  # somewhere else: here is room for one more
        (disk_stat(free=9 * MB), "", None),
        (disk_stat(free=9 * MB), DISK_FULL_ERROR, "storage.full"),
        (disk_stat(free=9 * MB), "OSError: [Errno 122] Disk quota exceeded", "storage.full"),
        (disk_stat(free=1000), "", "storage.full"),
        (disk_stat(free=1000 * 1000), "", "storage.full"),
        (disk_stat(free=100 * MB, files=0), "", "storage.full"),
        (disk_stat(free=100 * MB, flag=os.ST_RDONLY), "", "storage.read_only"),
    ],
)
def test_what_is_wrong_with_it_has_a_name(
    statvfs: os.statvfs_result, error_text: str, kind: str | None, tmp_path: Path
) -> None:
    fault = space.fault_of(tmp_path, statvfs, needs=10 * MB, output=error_text)
    assert (None if fault is None else fault.kind) == kind


@pytest.mark.parametrize(
    ("free", "needs", "error_text", "kind"),
    [
        (110_000, 13, "", None),  # a kill is a kill: there is room for thousands more
        (110_000, 0, "", None),
        (110_000, 13, DISK_FULL_ERROR, "storage.full"),
        (0, 13, "", "storage.full"),
        (0, 0, "", "storage.full"),
    ],
)
def test_little_room_explains_no_end_where_checkpoints_are_small(
    free: int, needs: int, error_text: str, kind: str | None, tmp_path: Path
) -> None:
    fault = space.fault_of(tmp_path, disk_stat(free=free), needs=needs, output=error_text)
    assert (None if fault is None else fault.kind) == kind


def test_a_file_system_that_counts_no_blocks_is_never_full(tmp_path: Path) -> None:
    """As one of an object store may be: an end there has another cause, and no wait would end."""
    filesystem = os.statvfs_result((4096, 0, 0, 0, 0, 0, 0, 0, 0, 255))
    assert space.fault_of(tmp_path, filesystem, needs=10 * MB, output=DISK_FULL_ERROR) is None


@contextmanager
def of_another_user() -> Iterator[None]:
    """Inside, `os.access` answers as for a user without rights: root may write everywhere."""
    uid = os.getuid()
    if uid == 0:
        os.setreuid(65534, -1)
    try:
        yield
    finally:
        if uid == 0:
            os.setreuid(0, -1)


def faults_of(path: Path) -> set[space.StorageFault | None]:
    """As a rank's exit finds it, and as an agent answers."""
    with of_another_user():
        at_exit = space.storage_fault(path, was_there=False, needs=0, output="")
        return {at_exit, space.write_fault(path)}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in a place that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_folder_without_the_right_to_write_is_a_fault_and_so_is_one_that_cannot_be_made(
    open_folder: Path,
) -> None:
    saves = open_folder / "saves"
    assert faults_of(saves) == {None}
    open_folder.chmod(0o555)
    assert faults_of(saves) == {("storage.unwritable", f"{open_folder} cannot be written")}
    open_folder.chmod(0o777)
    saves.mkdir()
    saves.chmod(0o555)
    assert faults_of(saves) == {("storage.unwritable", f"{saves} cannot be written")}


def test_an_agent_answers_whether_a_folder_can_be_written(pod: Pod, tmp_path: Path) -> None:
    assert pod.ask("POST", wire.WRITABLE, {"path": str(tmp_path / "new")}) == {"problem": ""}
    file = tmp_path / "file"
    file.touch(mode=0o600)
    answer = pod.ask("POST", wire.WRITABLE, {"path": str(file / "new")})
    assert answer == {"problem": f"{file} cannot be written"}


def test_a_full_disk_names_the_saves_there_that_no_run_resumes_from(tmp_path: Path) -> None:
    """They may be what fills it, and an operator may delete them."""

    def text() -> str:
        fault = space.storage_fault(tmp_path, was_there=True, needs=10**18, output=DISK_FULL_ERROR)
        assert fault is not None
        return fault.text.partition(" bytes are free")[2]

    assert text() == ""
    folder = tmp_path / ".everstep" / "set_aside"
    for name in ("2-step_40.bin", "2-step_60.bin"):
        (folder / name).mkdir(parents=True)
    assert text() == f"; {folder} has 2 set aside, which no run reads"
