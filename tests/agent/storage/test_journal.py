"""run.log and summary.json: written once, also if repeated, torn, written by two or sent to an agent."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.agent.storage import journal as storage
from everstep.agent.storage import permissions, reading
from everstep.backends.agents.commands.storage import journal_commands
from everstep.chronicle.chronicle import DialectFiles, Entry
from everstep.protocol import wire
from tests.agent.pod import TOKEN, Pod, Refused, until

BEGAN = 1_795_257_000.25  # 2026-11-21 10:30:00.250
FOLDER = "20261121_103000_restartable"


def test_a_workdir_that_is_not_there_is_never_made(tmp_path: Path) -> None:
    workdir = tmp_path / "mistyped"
    (command,) = commands(workdir / "out", *STORY)
    command["workdir"] = str(workdir)
    with pytest.raises(OSError, match=f"the workdir {workdir} is no folder"):
        storage.write(command)
    assert not workdir.exists()
    workdir.mkdir()
    storage.write(command)
    assert lines(workdir / "out") == WRITTEN


def entry(number: int, text: str, *, run: int = 0, **about: object) -> Entry:
    row = {key: value for key, value in about.items() if key != "of"}
    return Entry(
        number=number,
        phase="main",
        model_dir=None,
        began=BEGAN,
        at=BEGAN + number,
        run=run,
        text=text,
        about=about.get("of", 0),  # type: ignore[arg-type]
        row=row,  # type: ignore[arg-type]
    )


STORY = (
    entry(1, "generation 1 started", run=1, status="running", start_time=BEGAN + 1, end_time=None),
    entry(2, "restart 1: crash -> in_place", of=1, status="failed", end_time=BEGAN + 2),
    entry(3, "restart 1: success"),
    entry(4, "generation 2 started", run=2, status="running", start_time=BEGAN + 4, end_time=None),
)


def write(root: Path, *entries: Entry, job: str = "demo") -> None:
    for command in commands(root, *entries, job=job):
        storage.write(command)


def commands(root: Path, *entries: Entry, job: str = "demo") -> list[wire.JournalCommand]:
    return list(journal_commands(job, [replace(one, model_dir=str(root)) for one in entries]))


def lines(root: Path, folder: str = FOLDER) -> list[str]:
    return (root / folder / "run.log").read_text().splitlines()


WRITTEN = [
    "[run_1] 2026-11-21T10:30:01.250Z generation 1 started",
    "[main] 2026-11-21T10:30:02.250Z restart 1: crash -> in_place",
    "[main] 2026-11-21T10:30:03.250Z restart 1: success",
    "[run_2] 2026-11-21T10:30:04.250Z generation 2 started",
]


def test_every_entry_is_a_line_and_every_run_a_row(tmp_path: Path) -> None:
    write(tmp_path, *STORY)
    assert lines(tmp_path) == WRITTEN
    summary = json.loads((tmp_path / FOLDER / "summary.json").read_text())
    assert (summary["workflow_id"], summary["phase"]) == ("demo", "main")
    assert [(run["run"], run["status"], run["end_time"]) for run in summary["runs"]] == [
        (1, "failed", "2026-11-21T10:30:02.250Z"),
        (2, "running", None),
    ]


@pytest.mark.parametrize("cut", range(5))
def test_what_was_written_is_not_written_again(tmp_path: Path, cut: int) -> None:
    write(tmp_path, *STORY[:cut])
    write(tmp_path, *STORY)
    write(tmp_path, *STORY[1:])
    assert lines(tmp_path) == WRITTEN


def test_a_line_that_was_torn_is_written_whole(tmp_path: Path) -> None:
    write(tmp_path, *STORY[:2])
    log = tmp_path / FOLDER / "run.log"
    log.write_bytes(log.read_bytes()[:-9])
    write(tmp_path, *STORY)
    assert [line for line in lines(tmp_path) if line in WRITTEN] == [
        WRITTEN[0],
        *WRITTEN[1:],
    ]
    assert len(lines(tmp_path)) == len(WRITTEN) + 1


def test_many_writers_write_each_line_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda _n: write(tmp_path, *STORY), range(40)))
    assert lines(tmp_path) == WRITTEN


def test_a_damaged_summary_is_begun_anew(tmp_path: Path) -> None:
    write(tmp_path, *STORY)
    (tmp_path / FOLDER / "summary.json").write_text("{")
    write(tmp_path, *STORY)
    assert len(json.loads((tmp_path / FOLDER / "summary.json").read_text())["runs"]) == 2


def test_phases_that_began_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    other = replace(STORY[0], phase="second")
    write(tmp_path, STORY[0], other)
    write(tmp_path, other, job="another")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        FOLDER,
        "20261121_103001_restartable",
        "20261121_103002_restartable",
    ]
    assert lines(tmp_path) == WRITTEN[:1]
    write(tmp_path, other)
    assert lines(tmp_path, "20261121_103001_restartable") == WRITTEN[:1]


def test_what_somebody_was_killed_while_writing_does_not_stay(tmp_path: Path) -> None:
    write(tmp_path, *STORY)
    (tmp_path / FOLDER / "summary.json.0123456789abcdef.tmp").write_text("{")
    write(tmp_path, *STORY)
    names = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert names == {".lock", "run.log", "summary.json"}


@pytest.mark.parametrize("name", ["run.log", "summary.json", ".lock"])
@pytest.mark.parametrize("is_link", [True, False])
def test_nothing_is_written_through_a_link_nor_waited_for(
    tmp_path: Path, name: str, *, is_link: bool
) -> None:
    folder, other = tmp_path / "model" / FOLDER, tmp_path / "other"
    write(folder.parent, STORY[0])
    (folder / name).unlink()
    other.write_text("untouched")
    if is_link:
        (folder / name).symlink_to(other)
    else:
        os.mkfifo(folder / name)
    with pytest.raises(OSError, match=f"{name} is no plain file"):
        write(folder.parent, *STORY)
    assert other.read_text() == "untouched"


def test_a_folder_that_is_a_link_is_not_followed_but_the_one_that_was_named_is(
    tmp_path: Path,
) -> None:
    link_path, disk = tmp_path / "named", tmp_path / "disk"
    (disk / "elsewhere").mkdir(parents=True)
    link_path.symlink_to(disk)
    write(link_path, *STORY)
    assert lines(disk) == WRITTEN
    (disk / FOLDER).rename(tmp_path / "moved")
    (disk / FOLDER).symlink_to("elsewhere")
    with pytest.raises(NotADirectoryError):
        write(link_path, *STORY)
    assert [*(disk / "elsewhere").iterdir()] == []


def modes(*paths: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


def test_a_folder_that_somebody_was_killed_over_is_opened_by_the_next_one(tmp_path: Path) -> None:
    way = [tmp_path / "new", tmp_path / "new/model", tmp_path / "new/model" / FOLDER]
    for folder in way:  # one may be killed over each of them in turn
        folder.mkdir(permissions.UNOPENED)
    write(way[1], *STORY)
    assert modes(*way) == [0o777 & ~permissions.users_umask()] * 3
    assert lines(way[1]) == WRITTEN


def test_a_folder_is_made_with_the_mark_of_one_that_is_not_open_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(permissions, "open_as_users", killed)
    with pytest.raises(KeyboardInterrupt):
        permissions.users_folder(tmp_path / "new" / "model")
    assert modes(tmp_path / "new") == [permissions.UNOPENED]
    assert not (tmp_path / "new" / "model").exists()


def test_a_folder_that_its_owner_closed_stays_closed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir(0o700)
    write(tmp_path / "model", *STORY)
    assert modes(tmp_path / "model") == [0o700]


def test_who_comes_late_with_what_is_known_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, *STORY)
    summary = (tmp_path / FOLDER / "summary.json").read_bytes()
    write(tmp_path, STORY[0])
    assert (tmp_path / FOLDER / "summary.json").read_bytes() == summary


def test_a_folder_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "run.log").write_text("theirs")
    write(tmp_path, *STORY)
    assert lines(tmp_path) == ["theirs"]
    assert lines(tmp_path, "20261121_103001_restartable") == WRITTEN


WORDED = tuple(
    replace(
        entry,
        dialect_files=DialectFiles(
            summary={"most": 3},
            files={"params.yaml": {"trainer": {}}},
            folders=("prefetched",),
        ),
    )
    for entry in STORY
)


def everything(root: Path) -> dict[str, str | None]:
    """Each file with what it says, each folder with nothing."""
    files = {str(path.relative_to(root)): path for path in root.rglob("*")}
    return {name: path.read_text() if path.is_file() else None for name, path in files.items()}


def test_where_a_document_asks_for_words_of_its_own_there_are_no_others(tmp_path: Path) -> None:
    write(tmp_path, *WORDED)
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        *(".lock", "params.yaml", "prefetched", "run.log", "summary.json")
    ]
    assert (folder / "params.yaml").read_text() == "trainer: {}\n"
    summary = json.loads((folder / "summary.json").read_text())
    assert {*summary} == {"workflow_id", "most", "runs"}
    assert [{*run} for run in summary["runs"]] == [{"status", "end_time"}, {*STORY[3].row}]


@pytest.mark.parametrize("name", ["", ".", "..", "../out", "a/b", "/out"])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    (command,) = commands(tmp_path / "model", *STORY)
    for bad in ({"files": {name: ""}}, {"folders": [name]}):
        with pytest.raises(OSError, match="is no name in"):
            storage.write({**command, **bad})  # type: ignore[typeddict-item]
    assert {path.name for path in tmp_path.rglob("*")} == {"model", FOLDER, ".lock"}


KILLED_AT = """
import json, os, sys
from everstep.agent.storage import journal
def watch(event, args):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
for line in sys.stdin:
    left, command = json.loads(line)
    child = os.fork()
    if child == 0:
        sys.addaudithook(watch)
        journal.write(command)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Writers:
    """Writes each command in a process of its own, forked where the modules are loaded already."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def is_killed(self, command: wire.JournalCommand, at: int) -> bool:
        """Whether it is killed before its so many-th look at a file or folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([at, command]) + "\n")
        self._process.stdin.flush()
        returncode = int(self._process.stdout.readline())
        assert returncode in (0, -signal.SIGKILL)
        return returncode != 0


@pytest.fixture
def writers() -> Iterator[Writers]:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_AT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Writers(process)


@pytest.mark.parametrize("before", [0, 2])
def test_a_writer_may_be_killed_at_each_step(tmp_path: Path, writers: Writers, before: int) -> None:
    write(tmp_path / "whole", *WORDED[:before])
    write(tmp_path / "whole", *WORDED)
    whole, at = everything(tmp_path / "whole"), 0
    while True:
        root = tmp_path / f"killed-{at}"
        write(root, *WORDED[:before])
        (command,) = commands(root, *WORDED)
        killed = writers.is_killed(command, at)
        summary = root / FOLDER / "summary.json"
        assert not summary.exists() or json.loads(summary.read_text())
        write(root, *WORDED)
        assert everything(root) == whole, at
        if not killed:
            break
        at += 1
    assert at > 10


# -- Told to an agent -----------------------------------------------------------------------------


def tell(pod: Pod, root: Path, *entries: Entry, token: str = TOKEN) -> None:
    for command in commands(root, *entries):
        pod.ask("POST", wire.JOURNAL, command, token=token)


def is_accepted(pod: Pod, root: Path, *entries: Entry) -> bool:
    try:
        tell(pod, root, *entries)
    except Refused:
        return False
    return True


@contextmanager
def held(root: Path) -> Iterator[None]:
    """As by a writer that was stopped half way."""
    with (root / FOLDER / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_an_agent_writes_what_is_missing_whoever_wrote_the_rest(pod: Pod, tmp_path: Path) -> None:
    write(tmp_path, *STORY[:2])
    for _ in range(2):
        tell(pod, tmp_path, *STORY[1:])
    tell(pod, tmp_path, *STORY)
    assert lines(tmp_path) == WRITTEN


def test_a_strange_token_writes_nothing(pod: Pod, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        tell(pod, tmp_path / "model", *STORY, token="wrong")
    assert refused.value.status == wire.UNAUTHORIZED
    assert not (tmp_path / "model").exists()


def test_an_agent_follows_no_link(pod: Pod, tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    write(model, STORY[0])
    (model / FOLDER / "run.log").unlink()
    (model / FOLDER / "run.log").symlink_to(other)
    with pytest.raises(Refused, match=r"run\.log is no plain file") as refused:
        tell(pod, model, *STORY)
    assert (refused.value.status, other.exists()) == (wire.NO_STORAGE, False)


def test_an_agent_waits_for_no_storage_that_hangs_and_nobody_waits_with_it(
    pod: Pod, tmp_path: Path
) -> None:
    write(tmp_path, STORY[0])
    fence = {"generation": 1, "run": "r1", "cluster": "", "folders": [str(tmp_path)], "left": []}
    with held(tmp_path):
        for _ in range(reading.MOST + 1):
            with pytest.raises(Refused, match="does not answer") as refused:
                tell(pod, tmp_path, *STORY)
            assert refused.value.status == wire.NO_STORAGE
        pod.ask("POST", wire.FENCE, fence)
    until(lambda: is_accepted(pod, tmp_path, *STORY), what="the end of those who hung")
    assert lines(tmp_path) == WRITTEN


def test_what_an_agent_was_killed_over_is_written_by_the_next_one(pod: Pod, tmp_path: Path) -> None:
    write(tmp_path, STORY[0])
    with held(tmp_path):
        with pytest.raises(Refused):
            tell(pod, tmp_path, *STORY)
        pod.agent.kill()
        pod.agent.wait()
    assert lines(tmp_path) == WRITTEN[:1]
    tell(pod.start(), tmp_path, *STORY)
    assert lines(tmp_path) == WRITTEN


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_what_an_agent_writes_goes_by_the_umask_of_who_started_it(
    idle: Pod, tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        idle.start()
    finally:
        os.umask(before)
    model = tmp_path / "new" / "model"
    fence = {"generation": 1, "run": "r1", "cluster": "", "folders": [str(model)], "left": []}
    idle.ask("POST", wire.FENCE, fence)
    tell(idle, model, *STORY)
    folders = [model.parent, model, model / wire.FENCE_FOLDER, model / FOLDER]
    files = [model / FOLDER / name for name in ("run.log", "summary.json")]
    assert modes(*folders, *files) == [0o777 & ~umask] * 4 + [0o666 & ~umask] * 2
