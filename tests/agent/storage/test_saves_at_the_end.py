"""What is saved when a rank ends: whole if its writer closed or renamed it while that lived, else not.

The files prove nothing by themselves, and each end lies in the times of ends in the request. Only real
processes show in which order the kernel closes files and ends them.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.storage.checkpoints import LEFT_OPEN, scan
from everstep.protocol import wire
from tests.agent.pod import FOREVER, TELL, Pod, until

PERIODIC = 100
LAST = 148
SIZE = 200_000

SAVES = f"""{TELL}
import signal, subprocess, sys, time
def path(step): return os.path.join(os.environ["SAVES"], "step_%d.bin" % step)
def save(step, size={SIZE}):
    with open(path(step), "wb") as file: file.write(b"x" * size)
def save_renamed(step):
    with open(path(step) + ".tmp", "wb") as file:
        file.write(b"x" * {SIZE}); file.flush(); os.fsync(file.fileno())
    os.rename(path(step) + ".tmp", path(step))
def half(step):
    file = open(path(step), "wb", buffering=0)
    file.write(b"x" * {SIZE // 2})
    return file
def on_term(do):
    def handle(*_): signal.signal(signal.SIGTERM, signal.SIG_IGN); do()
    signal.signal(signal.SIGTERM, handle)
def wait():
    tell("ready", 1)
    while True: time.sleep(60)
save({PERIODIC})
os.utime(path({PERIODIC}), (1000, 1000))
"""


def script(body: str) -> str:
    return SAVES + body


def begin(pod: Pod, command: str | list[str], *, body: str = "") -> Path:
    """Run it until its rank waits; returns the folder that it saves to."""
    folder = pod.home.parent / "saves"
    folder.mkdir()
    pod.run(command, checkpoints_path=str(folder), env={"SAVES": str(folder), "BODY": body})
    pod.file("ready")
    return folder


def good_after(pod: Pod, folder: Path, *, since: float) -> list[int]:
    """The good checkpoints, by a question that names the whole time since then as one of ends."""
    return [saved["step"] or 0 for saved in listed_after(pod, folder, since=since) if saved["good"]]


def doubts(pod: Pod, folder: Path, *, since: float) -> dict[int, str]:
    return {one["step"] or 0: one["doubt"] for one in listed_after(pod, folder, since=since)}


def listed_after(pod: Pod, folder: Path, *, since: float) -> list[wire.SavedState]:
    question = {
        "path": str(folder),
        "format": "auto",
        "ended_between": [(since, time.time())],
        "is_over": False,
    }
    listed: list[wire.SavedState] = pod.ask("POST", wire.CHECKPOINTS, question)["checkpoints"]
    return listed


RENAMES = script(f"def end(): save_renamed({LAST}); sys.exit(143)\non_term(end)\nwait()")
CLOSES = script(f"def end(): save({LAST}); sys.exit(143)\non_term(end)\nwait()")
IN_SHELL = ["bash", "-c", 'python3 -c "$BODY"; echo done']
PASSED_ON = [
    "bash",
    "-c",
    """trap 'kill -TERM $!; wait $!; exit 143' TERM; python3 -c "$BODY" & wait $!""",
]


@pytest.mark.parametrize(
    ("body", "command"),
    [
        (RENAMES, [sys.executable, "-c", RENAMES]),
        (CLOSES, [sys.executable, "-c", CLOSES]),
        (RENAMES, IN_SHELL),
        (CLOSES, IN_SHELL),
        (RENAMES, PASSED_ON),
    ],
    ids=["renamed", "closed", "renamed in a shell", "closed in a shell", "signal passed on"],
)
def test_what_a_rank_saves_on_sigterm_is_whole_whatever_its_exit_code(
    pod: Pod, body: str, command: list[str]
) -> None:
    since = time.time()
    folder = begin(pod, command, body=body)
    pod.stopped(2, grace_s=30)
    assert good_after(pod, folder, since=since) == [LAST, PERIODIC]


STALLS = script(f"file = half({LAST})\nos.utime(path({LAST}), (2000, 2000))\nwait()")
"""Writes half and keeps the file open, so long ago that no time shows it."""


@pytest.mark.parametrize("grace_s", [0.0, 30.0], ids=["SIGKILL", "SIGTERM"])
def test_a_file_that_is_open_when_its_writer_is_killed_is_not_whole(
    pod: Pod, grace_s: float
) -> None:
    folder = begin(pod, STALLS)
    ended = time.time()
    pod.stopped(2, grace_s=grace_s)
    assert doubts(pod, folder, since=ended) == {LAST: LEFT_OPEN, PERIODIC: ""}
    run = pod.until(lambda state: state["run"] and state["run"]["checkpoint"])["run"]
    assert run is not None
    assert run["checkpoint"] is not None
    assert run["checkpoint"]["step"] == PERIODIC


def test_a_file_that_a_child_has_open_when_all_are_killed_is_not_whole(pod: Pod) -> None:
    child = f"import subprocess\nsubprocess.Popen([sys.executable, '-c', {STALLS!r}])\n"
    folder = begin(pod, f"import sys, time\n{child}time.sleep(600)")
    ended = time.time()
    pod.stopped(2)
    assert doubts(pod, folder, since=ended) == {LAST: LEFT_OPEN, PERIODIC: ""}


def test_a_folder_with_an_open_file_is_not_whole_and_one_that_was_renamed_is(pod: Pod) -> None:
    made = f"""
def made(name):
    folder = os.path.join(os.environ["SAVES"], name)
    os.mkdir(folder)
    with open(os.path.join(folder, "a.bin"), "wb") as file: file.write(b"x")
    return folder
os.rename(made("building"), os.path.join(os.environ["SAVES"], "step_{LAST - 1}"))
cut = made("step_{LAST}")
file = open(os.path.join(cut, "b.bin"), "wb", buffering=0)
file.write(b"x")
os.utime(file.fileno(), (2000, 2000))
os.utime(os.path.join(cut, "a.bin"), (2000, 2000))
wait()
"""
    since = time.time()
    folder = begin(pod, script(made))
    until_recorded(folder, f"step_{LAST}")
    pod.stopped(2)
    assert doubts(pod, folder, since=since) == {LAST: LEFT_OPEN, LAST - 1: "", PERIODIC: ""}


@pytest.mark.parametrize("saved", [f"save_renamed({LAST})", f"save({LAST})"])
def test_a_file_that_is_opened_again_and_changed_is_not_whole(pod: Pod, saved: str) -> None:
    again = f"{saved}\nfile = open(path({LAST}), 'r+b', buffering=0)\nfile.write(b'y')"
    folder = begin(pod, script(f"{again}\nos.utime(path({LAST}), (2000, 2000))\nwait()"))
    ended = time.time()
    pod.stopped(2)
    assert doubts(pod, folder, since=ended) == {LAST: LEFT_OPEN, PERIODIC: ""}


def test_a_save_that_is_interrupted_by_an_exit_in_the_handler_is_not_whole(pod: Pod) -> None:
    since = time.time()
    body = f"on_term(lambda: sys.exit(143))\nwith half({LAST}): wait()"
    folder = begin(pod, script(body))
    pod.stopped(2, grace_s=30)
    assert good_after(pod, folder, since=since) == [PERIODIC]


def test_a_save_that_fails_and_goes_on_is_doubted_by_its_size(pod: Pod) -> None:
    """As on a full disk: the file is closed, and the script trains on."""
    body = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({SIZE // 4}, {SIZE // 4}))
try: save({LAST})
except OSError: print("failed", flush=True)
os.utime(path({LAST}), (2000, 2000))
wait()
"""
    folder = begin(pod, script(body))
    ended = time.time()
    pod.stopped(2)
    assert doubts(pod, folder, since=ended) == {
        LAST: "it has 50,000 bytes where step_100.bin has 200,000",
        PERIODIC: "",
    }


def test_a_file_that_is_renamed_over_another_one_is_whole(pod: Pod) -> None:
    since = time.time()
    body = f"file = half({LAST})\nsave_renamed({LAST})\nwait()"
    folder = begin(pod, script(body))
    pod.stopped(2)
    assert good_after(pod, folder, since=since) == [LAST, PERIODIC]


@pytest.fixture
def later_pod(pod: Pod) -> Iterator[Pod]:
    """Another pod of the job, in another slot, whose agent begins only after the first one was killed."""
    uid = f"demo-1-{uuid.uuid4().hex[:8]}"
    other = Pod(pod.pyz, pod.home.parent / uid, uid)
    yield other
    other.end()


def test_what_an_agent_saw_is_known_to_another_one_after_it_was_killed(
    pod: Pod, later_pod: Pod
) -> None:
    since = time.time()
    body = f"save_renamed({LAST - 1})\nfile = half({LAST})\n"
    folder = begin(pod, script(f"{body}os.utime(path({LAST}), (2000, 2000))\nwait()"))
    until_recorded(folder, f"step_{LAST}.bin")
    pod.agent.kill()
    until(lambda: not pod.marked(), what="the end of the rank")
    later_pod.start("--slot", "1")
    expected = {LAST: LEFT_OPEN, LAST - 1: "", PERIODIC: ""}
    assert doubts(later_pod, folder, since=since) == expected
    later_pod.runs(FOREVER, checkpoints_path=str(folder), generation=2)
    later_pod.stopped(3)
    assert doubts(later_pod, folder, since=since) == expected


def test_what_was_left_open_by_a_slot_that_is_gone_does_not_doubt_a_later_save(
    pod: Pod, later_pod: Pod
) -> None:
    """Of a folder that is written in place the later agent records nothing: times decide about it."""
    folder_of_step = f"""
folder = os.path.join(os.environ["SAVES"], "step_{LAST}")
os.makedirs(folder, exist_ok=True)
file = open(os.path.join(folder, "a.bin"), "wb", buffering=0)
file.write(b"x")
"""
    folder = begin(pod, script(f"{folder_of_step}wait()"))
    until_recorded(folder, f"step_{LAST}")
    pod.agent.kill()
    until(lambda: not pod.marked(), what="the end of the rank")
    assert doubts_by_times(folder) == {LAST: LEFT_OPEN, PERIODIC: ""}
    later_pod.start("--slot", "1")
    body = f"{folder_of_step}file.write(b'y')\nfile.close()\nwait()"
    env = {"SAVES": str(folder)}
    later_pod.run(script(body), checkpoints_path=str(folder), env=env, generation=2)
    later_pod.file("ready")
    later_pod.stopped(3)
    assert doubts_by_times(folder) == {LAST: "", PERIODIC: ""}


def doubts_by_times(folder: Path) -> dict[int | None, str]:
    """The doubts where every writer has closed its files, so that nothing is too new to be sure."""
    return {saved["step"]: saved["doubt"] for saved in scan(str(folder), is_over=True)}


def test_a_new_run_of_the_slot_takes_over_what_the_one_before_knew(pod: Pod) -> None:
    since = time.time()
    body = f"save_renamed({LAST - 1})\nfile = half({LAST})\n"
    folder = begin(pod, script(f"{body}os.utime(path({LAST}), (2000, 2000))\nwait()"))
    pod.stopped(2)
    for generation in (3, 5):
        pod.runs(FOREVER, checkpoints_path=str(folder), generation=generation)
        until(lambda: record_of(folder)["generation"] == generation, what="the record")  # noqa: B023
        pod.stopped(generation + 1)
        expected = {LAST: LEFT_OPEN, LAST - 1: "", PERIODIC: ""}
        assert doubts(pod, folder, since=since) == expected


def test_a_folder_that_the_script_makes_later_is_watched_too(pod: Pod) -> None:
    since = time.time()
    folder = pod.home.parent / "saves"
    body = f"{TELL}\nimport time\nwait_for = os.path.join(os.environ['HOMEDIR'], 'go')\n"
    body += "os.mkdir(os.environ['SAVES'])\n"
    body += "while not os.path.exists(wait_for): time.sleep(0.01)\n"
    begin_body = f"{body}{SAVES}save_renamed({LAST})\nwait()"
    pod.run(begin_body, checkpoints_path=str(folder), env={"SAVES": str(folder)})
    until((folder / ".everstep/saves/0.json").exists, what="the record")
    (pod.home / "go").touch()
    pod.file("ready")
    pod.stopped(2)
    assert good_after(pod, folder, since=since) == [LAST, PERIODIC]


def record_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / ".everstep/saves/0.json").read_text())
    return content


def until_recorded(folder: Path, name: str) -> None:
    path = folder / ".everstep/saves/0.json"
    until(lambda: path.exists() and name in record_of(folder)["saves"], what="the record")
