"""The warden ends the ranks where their agent cannot."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.agent.processes import proc
from everstep.agent.storage import fence, phase_mark
from everstep.agent.storage.fence import Fence
from everstep.protocol import wire
from tests.agent.pod import DAEMON, FOREVER, Pod, Refused, exits, is_running, signal_to, until
from tests.support.patience import HUNG_S


def warden_of(pod: Pod) -> int:
    """The newest one."""
    table = proc.all_processes()
    for pid in sorted(proc.below(pod.agent.pid, table), reverse=True):
        if "\0warden\0" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError("there is no warden")


def test_newer_fence_ends_ranks_whose_agent_is_stopped(pod: Pod, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    fence.write(str(model), Fence("demo", "r1", "", 1))
    (rank,) = pod.runs(FOREVER, model_dir=str(model), fence_s=60.0)
    signal_to(pod.agent.pid, signal.SIGSTOP)
    fence.write(str(model), Fence("demo", "r1", "", 2))
    until(lambda: not is_running(rank), what="the end of the rank")
    signal_to(pod.agent.pid, signal.SIGCONT)
    (fact,) = exits(pod.until(exits))
    assert "generation 2 is in the fence" in fact["message"]


def test_a_run_that_is_older_than_its_fence_is_refused(pod: Pod, tmp_path: Path) -> None:
    """It lay in the agent's backlog, for example, while the agent was stopped."""
    fence.write(str(tmp_path), Fence("demo", "r1", "", 4))
    with pytest.raises(Refused, match="generation 4 is in the fence"):
        pod.runs(FOREVER, generation=3, model_dir=str(tmp_path))
    assert pod.marked() == []


def test_a_newer_fence_of_another_job_concerns_nobody(pod: Pod, tmp_path: Path) -> None:
    (rank,) = pod.runs(FOREVER, generation=3, model_dir=str(tmp_path), fence_s=60.0)
    fence.write(str(tmp_path), Fence("demo", "r1", "", 3))
    stray = Fence("demo", "r1", "elsewhere", 9)
    file = tmp_path / ".everstep" / stray.name
    file.write_text(json.dumps(stray._asdict()))
    read = file.stat().st_atime_ns
    until(lambda: _was_read_again(file, read), what="a reading")
    assert is_running(rank)


def test_own_fence_and_older_ones_end_nobody(pod: Pod, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (rank,) = pod.runs(FOREVER, generation=3, model_dir=str(model), fence_s=60.0)
    fence.write(str(model), Fence("demo", "r1", "", 2))
    fence.write(str(model), Fence("demo", "r1", "", 3))
    read = fence.path_in(str(model))
    before = read.stat().st_atime_ns
    until(lambda: _was_read_again(read, before), what="a reading")
    assert is_running(rank)


def _was_read_again(path: Path, since: int) -> bool:
    """Files are mounted so that a reading is noted once a day: set it back, then look."""
    now = path.stat()
    if now.st_atime_ns == since:
        os.utime(path, ns=(0, now.st_mtime_ns))
        return False
    return now.st_atime_ns > since


def test_without_poll_and_fence_the_ranks_end(pod: Pod, tmp_path: Path) -> None:
    model = tmp_path / "model"
    fence.write(str(model), Fence("demo", "r1", "", 1))
    (rank,) = pod.runs(FOREVER, model_dir=str(model), fence_s=1.5)
    model.rename(tmp_path / "away")
    until(lambda: not is_running(rank), what="the end of the rank")
    (fact,) = exits(pod.until(exits))
    assert "no poll and no fence for 1.5 s" in fact["message"]


def test_polls_keep_the_ranks_alive_without_a_fence(pod: Pod, tmp_path: Path) -> None:
    model = tmp_path / "model"
    fence.write(str(model), Fence("demo", "r1", "", 1))
    (rank,) = pod.runs(FOREVER, model_dir=str(model), fence_s=1.0)
    model.rename(tmp_path / "away")
    for _ in range(15):
        version = pod.state()["version"]
        pod.state(version, 0.2)
    assert is_running(rank)


def test_warden_that_is_killed_is_replaced(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    first = warden_of(pod)
    signal_to(first, signal.SIGKILL)
    until(lambda: not is_running(first))
    until(lambda: _has_warden(pod), what="another warden")
    assert is_running(rank)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    until(lambda: not is_running(rank), what="the end of the rank")


def test_a_stopped_warden_is_replaced_and_harms_nobody_when_it_goes_on(
    pod: Pod, tmp_path: Path
) -> None:
    file = fence.write(str(tmp_path), Fence("demo", "r1", "", 1))
    (rank,) = pod.runs(FOREVER, model_dir=str(tmp_path), fence_s=HUNG_S)
    read = file.stat().st_atime_ns
    until(lambda: _was_read_again(file, read), what="a reading")
    first = warden_of(pod)
    signal_to(first, signal.SIGSTOP)
    # Each look reads all processes of the machine.
    until(lambda: _has_warden(pod, other_than=first), what="another warden", look_s=0.1)
    signal_to(first, signal.SIGCONT)
    until(lambda: not is_running(first), what="the end of the first one")
    assert is_running(rank)
    pod.until(lambda state: "the warden did not answer and was replaced" in state["notes"])
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    until(lambda: not is_running(rank), what="the end of the rank")


@pytest.fixture
def lonely(pyz: Path, tmp_path: Path) -> Iterator[Pod]:
    """A pod whose warden is stopped, and that can start no other one."""
    agent_copy = Path(shutil.copy(pyz, tmp_path / "agent.pyz"))
    uid = f"demo-0-{uuid.uuid4().hex[:8]}"
    pod = Pod(agent_copy, tmp_path / uid, uid).start()
    warden = warden_of(pod)
    agent_copy.unlink()
    signal_to(warden, signal.SIGSTOP)
    yield pod
    pod.end()
    signal_to(warden, signal.SIGKILL)  # if its agent did not


def test_an_agent_without_a_warden_ends_its_ranks_by_a_newer_fence(
    lonely: Pod, tmp_path: Path
) -> None:
    fence.write(str(tmp_path), Fence("demo", "r1", "", 1))
    (rank,) = lonely.runs(FOREVER, model_dir=str(tmp_path), fence_s=HUNG_S)
    fence.write(str(tmp_path), Fence("demo", "r1", "", 2))
    until(lambda: not is_running(rank), what="the end of the rank")
    (fact,) = exits(lonely.until(exits))
    assert "generation 2 is in the fence" in fact["message"]
    assert "consequence" not in fact["details"]
    lonely.runs(FOREVER, generation=2, model_dir=str(tmp_path), fence_s=HUNG_S)


def test_an_agent_without_a_warden_ends_its_ranks_in_the_dark(lonely: Pod, tmp_path: Path) -> None:
    model = tmp_path / "model"
    fence.write(str(model), Fence("demo", "r1", "", 1))
    (rank,) = lonely.runs(FOREVER, model_dir=str(model), fence_s=1.5)
    model.rename(tmp_path / "away")
    until(lambda: not is_running(rank), what="the end of the rank")
    (fact,) = exits(lonely.until(exits))
    assert "no poll and no fence for 1.5 s" in fact["message"]


def _has_warden(pod: Pod, *, other_than: int = 0) -> bool:
    try:
        return warden_of(pod) != other_than
    except (AssertionError, OSError):
        return False


def test_warden_ends_what_a_killed_agent_left_and_then_itself(pod: Pod) -> None:
    pod.runs(DAEMON)
    escaped, warden = int(pod.file("escaped")), warden_of(pod)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    until(lambda: not is_running(escaped) and not is_running(warden), what="their end")


def test_warden_of_an_agent_that_leaves_leaves_too(pod: Pod) -> None:
    warden = warden_of(pod)
    pod.ask("POST", wire.QUIT, {})
    pod.agent.wait(HUNG_S)
    until(lambda: not is_running(warden))


def generation_in(folder: str) -> int:
    return fence.read(folder)["demo", ""].generation


def test_fence_is_written_and_only_grows(pod: Pod, tmp_path: Path) -> None:
    folders = [str(tmp_path / "model"), str(tmp_path / "elsewhere")]
    fence_order = {"generation": 4, "run": "r1", "cluster": "", "folders": folders}
    real = {folder: folder for folder in folders}
    answer = {"real": real, "newer": 0, "is_held": False, "taken_by": None, "no_folder": ""}
    answer |= {"listing": None}
    assert pod.ask("POST", wire.FENCE, fence_order) == answer
    fence_file = json.loads(fence.path_in(folders[0]).read_text())
    assert fence_file.pop("written_at") <= time.time()
    whose = {"job": "demo", "run": "r1", "cluster": ""}
    flags = {"holds": True, "released": False, "outdated": False, "volumes": []}
    assert fence_file == {**whose, "generation": 4, **flags}
    fence.write(folders[0], Fence("demo", "r2", "", 9))
    answer |= {"newer": 9, "is_held": True}
    assert pod.ask("POST", wire.FENCE, {**fence_order, "generation": 5}) == answer
    assert [generation_in(folder) for folder in folders] == [9, 4], "a newer one is there"
    pod.ask("POST", wire.FENCE, {**fence_order, "generation": 10})
    assert [generation_in(folder) for folder in folders] == [10, 10]


@pytest.mark.parametrize(
    ("there", "newer", "taken_by"),
    [
        (Fence("demo", "r0", "", 3), 0, None),
        (Fence("demo", "r1", "", 4), 0, None),
        (Fence("demo", "r0", "", 4), 4, None),
        (Fence("demo", "r0", "", 5), 5, None),
        (Fence("demo", "r0", "elsewhere", 5), 0, "demo"),
        (Fence("other", "r", "", 5), 0, "other"),
        (Fence("other", "r", "", 3, released=True), 0, None),
        (Fence("other", "r", "", 4, released=True), 4, None),
    ],
)
def test_what_a_fence_finds_is_answered(
    pod: Pod, tmp_path: Path, there: Fence, newer: int, taken_by: str | None
) -> None:
    model, inside = str(tmp_path / "also"), str(tmp_path / "model" / "checkpoints")
    (tmp_path / "model" / ".everstep").mkdir(parents=True)
    (tmp_path / "also").symlink_to(tmp_path / "model")
    file = fence.path_in(model).with_name(there.name)
    file.write_text(json.dumps(there._replace(holds=True)._asdict()))
    fence_order: dict[str, object] = {"generation": 4, "run": "r1", "cluster": ""}
    fence_order |= {"folders": [model, inside], "begins": {model: "demo/main"}}
    answer: wire.FenceAnswer = pod.ask("POST", wire.FENCE, fence_order)
    assert answer["newer"] == newer
    assert (answer["taken_by"] and answer["taken_by"]["job"]) == taken_by
    assert answer["real"] == {model: str(tmp_path / "model"), inside: inside}
    has_begun = phase_mark.began(model, "demo/main") is not None
    assert has_begun == (not newer and taken_by is None)
    own_fence = fence.read(model).get(("demo", ""))
    is_written = own_fence is not None and (own_fence.run, own_fence.generation) == ("r1", 4)
    assert is_written == (not newer and taken_by is None)
    assert not (tmp_path / "model" / "checkpoints").exists(), "one fence is enough"


def test_a_workdir_that_is_not_there_is_never_made(pod: Pod, tmp_path: Path) -> None:
    workdir = tmp_path / "mistyped"
    folders = [str(tmp_path / "model"), str(workdir / "out" / "ckpt")]
    fence_order = {"generation": 4, "run": "r1", "cluster": "", "folders": folders}
    fence_order["workdir"] = str(workdir)
    answer: wire.FenceAnswer = pod.ask("POST", wire.FENCE, fence_order)
    assert answer["no_folder"] == f"the workdir {workdir} is no folder"
    assert not workdir.exists()
    assert not (tmp_path / "model").exists()
    workdir.mkdir()
    answer = pod.ask("POST", wire.FENCE, fence_order)
    assert not answer["no_folder"]
    assert [generation_in(folder) for folder in folders] == [4, 4]


@pytest.mark.parametrize("inside", ["", "below", "out/ckpt"])
@pytest.mark.parametrize("what", ["file", "link"])
def test_what_is_in_the_place_of_a_folder_is_named(
    pod: Pod, tmp_path: Path, what: str, inside: str
) -> None:
    """At the folder itself, above it, or where only a folder without a fence of its own is to be."""
    model = tmp_path / "model"
    at = model / inside if inside == "out/ckpt" else model
    at.parent.mkdir(parents=True, exist_ok=True)
    if what == "file":
        at.touch()
        why = f"{at} is no folder"
    else:
        at.symlink_to(tmp_path / "nowhere")
        why = f"{at} is a link to {tmp_path}/nowhere, which is not there"
    folders = [str(model if inside == "out/ckpt" else model / inside), str(model / "out" / "ckpt")]
    fence_order = {"generation": 4, "run": "r1", "cluster": "", "folders": folders}
    answer: wire.FenceAnswer = pod.ask("POST", wire.FENCE, fence_order)
    assert answer["no_folder"] == why
    assert not (model / ".everstep").exists()


def test_what_is_saved_is_listed_behind_a_fence_that_was_written(pod: Pod, tmp_path: Path) -> None:
    model, saved = tmp_path / "model", tmp_path / "model" / "saved"
    (saved / ".everstep" / "set_aside").mkdir(parents=True)
    (saved / ".everstep" / "set_aside" / "4-step-20.json").write_text("{}")
    (saved / ".everstep" / "set_aside" / "3-step-30.json").write_text("{}")
    (saved / "step-10.json").write_text("{}")
    question: dict[str, object] = {"path": str(saved), "ended_between": [], "is_over": False}
    fence_order = {"generation": 4, "run": "r1", "cluster": "", "folders": [str(model)]}
    with pytest.raises(Exception, match="400"):
        pod.ask(
            "POST", wire.FENCE, {**fence_order, "checkpoints": {**question, "ended_between": 7}}
        )
    assert not (model / ".everstep").exists(), "an order that makes no sense writes nothing"
    answer: wire.FenceAnswer = pod.ask("POST", wire.FENCE, {**fence_order, "checkpoints": question})
    listing = answer["listing"]
    assert listing is not None
    assert [one["step"] for one in listing["checkpoints"]] == [10]
    assert listing["set_aside"] == [str(saved / ".everstep" / "set_aside" / "4-step-20.json")]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    unreadable = {**question, "path": str(tmp_path / "loop")}
    answer = pod.ask("POST", wire.FENCE, {**fence_order, "checkpoints": unreadable})
    assert answer["listing"] is None, "unknown is not absent"
    fence.write(str(model), Fence("demo", "r2", "", 9))
    answer = pod.ask("POST", wire.FENCE, {**fence_order, "checkpoints": question})
    assert (answer["newer"], answer["listing"]) == (9, None)


def test_fence_that_cannot_be_written_is_told(pod: Pod) -> None:
    fence_order = {"generation": 1, "run": "r", "folders": ["/proc/out"]}
    with pytest.raises(Exception, match="503"):
        pod.ask("POST", wire.FENCE, fence_order)


def test_fence_survives_a_writer_stopped_in_the_middle(tmp_path: Path) -> None:
    fence.write(str(tmp_path), Fence("demo", "r", "", 1))
    lock = fence.path_in(str(tmp_path)).with_name("lock")
    holder = subprocess.Popen(["flock", str(lock), "sleep", "60"], start_new_session=True)
    try:
        fence.write(str(tmp_path), Fence("demo", "r", "", 2))
        assert generation_in(str(tmp_path)) == 2
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()


LOOKS = """
import sys
import time
from pathlib import Path
from everstep.agent.processes.warden import Warden

warden = Warden(int(sys.argv[1]), "somebody", Path(sys.argv[2]))
warden.generation = 1
warden._end("generation 2 is in the fence")
"""
"""A warden that has just read the fence, and not yet the newest settings of its agent."""


@pytest.mark.parametrize("has_order", [True, False])
def test_ranks_that_the_agent_started_while_the_fence_was_read_are_not_ended(
    tmp_path: Path, has_order: bool
) -> None:
    agent = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 & echo $!; wait"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert agent.stdout is not None
    rank = int(agent.stdout.readline())
    settings: dict[str, object] = {"generation": 2, "fence_s": 30, "helper": None}
    settings |= {"owner": ["demo", ""], "folders": [], "unpolled_s": 0.0}
    looks = subprocess.Popen(
        [sys.executable, "-c", LOOKS, str(agent.pid), str(tmp_path)], stdin=subprocess.PIPE
    )
    try:
        assert looks.stdin is not None
        if has_order:  # it is always said before the ranks are started
            looks.stdin.write(json.dumps(settings).encode() + b"\n")
            looks.stdin.flush()
        assert looks.wait(HUNG_S) == 0
        assert is_running(rank) == has_order
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.communicate()
        looks.communicate()
