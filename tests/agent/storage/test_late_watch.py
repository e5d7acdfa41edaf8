"""A folder that is made during the run: the agents of a job on one machine notice it one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.observing import save_watch
from everstep.agent.observing.save_watch import SaveRun, SaveWatch
from everstep.agent.processes import proc
from everstep.agent.storage import save_records
from everstep.agent.storage.checkpoints import CUT_OFF, scan
from everstep.agent.storage.save_states import CLOSED
from tests.agent.pod import until
from tests.support.kernel import SHOWS_EXIT_STATUSES
from tests.support.patience import HUNG_S

WRITES_HALF = """
import os, sys, time
folder = sys.argv[1]
while not os.path.exists(folder + ".go"): time.sleep(0.001)
os.mkdir(folder)
file = open(folder + "/step_5.bin", "wb", buffering=0)
file.write(b"half")
open(folder + ".written", "w").close()
time.sleep(1000)
"""


def watch_of(slot: int, folder: Path) -> SaveWatch:
    run = SaveRun(job="demo", slot=slot, generation=1, folder=folder, pattern=None)
    watch = SaveWatch(run, lambda _: False)
    watch.begin()
    return watch


def done(watch: SaveWatch, *, is_over: bool = False) -> None:
    """Wait until the watch has looked at the folder and carried out all that it was given."""
    recorded = threading.Event()
    watch.ended(is_over=is_over, then=recorded.set)
    assert recorded.wait(HUNG_S)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[proc.Process]:
    """A process that is no descendant of this one, as the rank of another pod."""
    script = ["sh", "-c", 'python=$1; shift; "$python" -c "$@" > /dev/null 2>&1 & echo $!', "-"]
    arguments = [*script, sys.executable, WRITES_HALF, str(tmp_path / "saves")]
    printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    process = proc.find(int(printed))
    assert process is not None
    yield process
    proc.kill([process])


def test_processes_before_a_folder_that_never_comes_are_not_all_remembered(tmp_path: Path) -> None:
    """A run of weeks starts many, and its document may name a wrong folder."""
    watch = watch_of(0, tmp_path / "nowhere")
    process = proc.find(os.getpid())
    assert process is not None
    for n in range(3 * save_watch.WRITERS_MOST):
        watch.saw([process._replace(started=n)])
    done(watch)
    watch.close()
    assert len(watch._early_writers) == save_watch.WRITERS_MOST


def test_a_file_whose_writer_was_killed_before_its_agent_watched_is_not_whole(
    tmp_path: Path, rank: proc.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other agent saw it closed: by the kernel, at the end of a process that is none of its own."""
    monkeypatch.setattr(save_watch, "FOLDER_S", HUNG_S)
    folder = tmp_path / "saves"
    late = watch_of(1, folder)
    late.saw([rank])
    done(late)
    (tmp_path / "saves.go").touch()
    until((tmp_path / "saves.written").exists, what="half of a file")
    early = watch_of(0, folder)
    done(early)
    began = time.time()
    proc.kill([rank])
    until(lambda: not proc.has_memory(rank.pid), what="the end of the writer")
    for watch in (early, late):
        done(watch, is_over=True)
        watch.close()
    (saved,) = scan(str(folder), ended_between=[(began, time.time())])
    assert (saved["step"], saved["good"], saved["doubt"]) == (5, False, CUT_OFF)


SAVES_AT_ITS_END = """
import sys
sys.stdin.readline()
with open(sys.argv[1] + "/step_5.bin", "wb") as file: file.write(b"whole")
sys.exit(143)
"""


def test_a_save_below_a_shell_is_whole_though_its_writer_was_never_seen_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: writer and shell have ended before the agent looks at what was closed."""
    folder = tmp_path / "saves"
    folder.mkdir()
    watch = watch_of(0, folder)
    done(watch)
    command = ["sh", "-c", '"$@"; exit 0', "-", sys.executable, "-c", SAVES_AT_ITS_END, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as shell:
        # Other tests of this process have children too: those are none of this pod.
        watch._family = family = proc.Family(shell.pid)
        until(lambda: len(family.now()) > 0, what="the writer below the shell")
        watch.saw(family.now().values())
        goes_on = held(watch, monkeypatch)
        watch.before_signal(signal.SIGTERM)
        shell.communicate(b"\n")
        watch.exited(shell.pid, shell.returncode)
        goes_on.set()
        done(watch, is_over=True)
    watch.close()
    states = {name: save.state for name, save in save_records.read(folder)[0].saves.items()}
    assert states == ({"step_5.bin": CLOSED} if SHOWS_EXIT_STATUSES else {})


def held(watch: SaveWatch, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold up the thread of the watch before it takes what has happened. Returns what lets it go on."""
    timeline, goes_on = watch._timeline, threading.Event()
    take = timeline.take

    def take_later() -> list[Any]:
        assert goes_on.wait(HUNG_S)
        return take()

    monkeypatch.setattr(timeline, "take", take_later)
    return goes_on
