"""A rank keeps snapshots in memory that its agent holds, and its successor goes on from them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import everstep
from everstep.protocol import rank_memory, wire
from everstep.train.link import Link
from tests.agent.pod import FOREVER, TELL, Pod, signal_to, until

LIBRARY = str(Path(everstep.__file__).parents[1])
ENV = {"PYTHONPATH": LIBRARY, "WORLD_SIZE": "1", "PYTHONDONTWRITEBYTECODE": "1"}

TRAIN = f"""{TELL}
import time
from everstep.train import run
restored = run.restore()
weights = bytearray(8_000_000) if restored is None else restored.state["weights"]
step = 0 if restored is None else restored.step
tell(f"began-{{os.environ['EVERSTEP_GENERATION']}}-{{os.environ['RANK']}}", f"{{step}} {{weights[0]}}")
while step < LAST:
    step += 1
    weights[:] = bytes([step]) * len(weights)
    run.step(step)
    assert run.snapshot(step, {{"weights": weights}})
tell(f"made-{{os.environ['EVERSTEP_GENERATION']}}-{{os.environ['RANK']}}", step)
while True: time.sleep(60)
"""
"""A training of steps up to LAST, each of which writes its number all over the weights."""


def train(last: int) -> str:
    return TRAIN.replace("LAST", str(last))


def runs(
    pod: Pod, script: str, generation: int = 1, ranks: int = 1, step: int | None = None
) -> list[int]:
    env = {**ENV, "WORLD_SIZE": str(ranks)}
    if step is not None:
        env[rank_memory.SNAPSHOT_STEP] = str(step)
    return pod.runs(script, generation=generation, ranks=ranks, env=env, snapshot_step=step)


def held_steps(state: wire.AgentState) -> list[tuple[int, int]]:
    return sorted((one["rank"], one["step"]) for one in state["snapshots"])


def test_a_killed_rank_goes_on_from_its_newest_snapshot(pod: Pod) -> None:
    (pid,) = runs(pod, train(5))
    pod.file("made-1-0")
    signal_to(pid, signal.SIGKILL)
    state = pod.until(lambda s: any(fact["kind"] == "process.exit" for fact in s["facts"]))
    assert held_steps(state) == [(0, 4), (0, 5)]
    runs(pod, train(7), generation=2, step=5)
    assert pod.file("began-2-0") == "5 5"
    pod.file("made-2-0")
    pod.stopped(3)
    runs(pod, train(7), generation=3, step=7)
    assert pod.file("began-3-0") == "7 7"


KILLED_WHILE_WRITING = f"""{TELL}
import os, pickle, signal
from everstep.train import run, states
def state_of(step):
    return {{name: pickle.PickleBuffer(bytearray([step]) * 1000) for name in "ab"}}
run.restore()
for step in range(1, 4):
    run.snapshot(step, state_of(step))
real = states._Bytes.copy_into
def copy_half(part, place):
    place[:500] = bytes(part._raw[:500])
    os.kill(os.getpid(), signal.SIGKILL)
states._Bytes.copy_into = copy_half
run.snapshot(4, state_of(4))
"""


def test_a_snapshot_that_was_being_written_is_none(pod: Pod) -> None:
    runs(pod, KILLED_WHILE_WRITING)
    state = pod.until(lambda s: any(fact["kind"] == "process.exit" for fact in s["facts"]))
    assert held_steps(state) == [(0, 3)]
    restores = f"{TELL}\nfrom everstep.train import run\ntell('state', run.restore())\n{FOREVER}"
    runs(pod, restores, generation=2, step=3)
    assert eval(pod.file("state").replace("Restored", "dict")) == {  # a test's own file
        "step": 3,
        "state": {"a": bytearray([3]) * 1000, "b": bytearray([3]) * 1000},
    }


def test_a_start_that_does_not_resume_from_snapshots_drops_them(pod: Pod) -> None:
    runs(pod, train(5), ranks=2)
    pod.file("made-1-0"), pod.file("made-1-1")
    pod.stopped(2)
    assert held_steps(pod.state()) == [(0, 4), (0, 5), (1, 4), (1, 5)]
    runs(pod, FOREVER, generation=2, ranks=2)
    assert held_steps(pod.state()) == []


def test_a_start_keeps_the_snapshots_of_its_step_alone(pod: Pod) -> None:
    runs(pod, train(5), ranks=2)
    pod.file("made-1-0"), pod.file("made-1-1")
    pod.stopped(2)
    runs(pod, FOREVER, generation=2, ranks=2, step=4)
    assert held_steps(pod.state()) == [(0, 4), (1, 4)]


def test_a_rank_never_begins_from_anything_but_the_step_of_all(pod: Pod) -> None:
    runs(pod, train(5))
    pod.file("made-1-0")
    pod.stopped(2)
    runs(pod, train(9), generation=2, step=3)
    state = pod.until(lambda s: any(fact["generation"] == 2 for fact in s["facts"]))
    assert "has no snapshot of step 3" in state["facts"][-1]["message"]


def test_steps_need_no_log(pod: Pod) -> None:
    script = f"{TELL}\nfrom everstep.train import run\nrun.step(41)\nprint('step 7')\n{FOREVER}"
    runs(pod, script)
    state = pod.until(lambda s: s["run"] is not None and s["run"]["step"] is not None)
    assert state["run"] is not None
    assert state["run"]["step"] == 41
    assert state["run"]["first_step_at"] is not None


def test_the_last_step_of_a_killed_rank_is_exact(pod: Pod) -> None:
    steps = "for n in range(5000): run.step(n)"
    script = f"import os\nfrom everstep.train import run\n{steps}\nos.kill(os.getpid(), 9)"
    runs(pod, script)
    state = pod.until(lambda s: any(fact["kind"] == "process.exit" for fact in s["facts"]))
    assert state["facts"][-1]["details"]["at_step"] == 4999


def test_a_process_without_the_token_of_a_rank_is_refused(pod: Pod, tmp_path: Path) -> None:
    runs(pod, FOREVER)
    link = Link(str(pod.home), "another job's", 0)
    with contextlib.closing(link), (tmp_path / "page").open("w+b") as page:
        page.truncate(rank_memory.PAGE)
        with pytest.raises(PermissionError, match="token"):
            link.hello(page.fileno())


def test_a_worker_of_a_data_loader_is_no_rank(pod: Pod) -> None:
    script = f"""{TELL}
from everstep.train import run
run.step(1)
if os.fork() == 0:
    run.step(99)
    tell("child", run.snapshot(99, {{}}))
    os._exit(0)
os.wait()
{FOREVER}"""
    runs(pod, script)
    assert pod.file("child") == "False"
    state = pod.until(lambda s: s["run"] is not None and s["run"]["step"] is not None)
    assert state["run"] is not None
    assert state["run"]["step"] == 1


CUTS_OFF = f"""
import contextlib, os
from everstep.protocol import rank_memory
from everstep.train import buffers, run
{TELL}
run.step(1)
run.restore()
run.snapshot(1, {{}})
for name in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
        if "everstep-" in os.readlink(f"/proc/self/fd/{{name}}"):
            os.ftruncate(int(name), 0)
tell("cut", "off")
{FOREVER}"""


def test_a_rank_that_cuts_off_its_memory_does_no_harm_to_its_agent(pod: Pod) -> None:
    (pid,) = runs(pod, CUTS_OFF)
    pod.file("cut")
    assert held_steps(pod.state()) == []
    signal_to(pid, signal.SIGKILL)
    pod.until(lambda s: any(fact["kind"] == "process.exit" for fact in s["facts"]))
    assert pod.agent.poll() is None


def test_handles_do_not_add_up_over_restarts(pod: Pod) -> None:
    handles = Path(f"/proc/{pod.agent.pid}/fd")
    counts: list[int] = []
    for generation in range(1, 6):
        runs(pod, train(generation + 3), generation, step=generation + 2 if counts else None)
        pod.file(f"made-{generation}-0")
        counts.append(len([*handles.iterdir()]))
        pod.stopped(generation + 1)
    assert counts[-1] <= counts[1]


def test_a_script_that_goes_back_leaves_the_later_snapshot_behind(pod: Pod) -> None:
    """After a spike of its loss, say: the job must not resume from the training that was left."""
    script = f"""{TELL}
from everstep.train import run
run.restore()
for step in (98, 99, 100, 50):
    run.snapshot(step, step)
tell("made", "all")
{FOREVER}"""
    runs(pod, script)
    pod.file("made")
    assert held_steps(pod.stopped(2)) == [(0, 50)]


def test_a_snapshot_in_a_signal_handler_does_not_write_into_one_that_is_written(pod: Pod) -> None:
    script = f"""{TELL}
import os, pickle, signal
from everstep.train import run, states
kept = []
signal.signal(signal.SIGUSR1, lambda *_: kept.append(run.snapshot(2, "inner")))
real = states._Bytes.copy_into
def interrupted(part, place):
    os.kill(os.getpid(), signal.SIGUSR1)
    real(part, place)
states._Bytes.copy_into = interrupted
run.restore()
kept.append(run.snapshot(1, pickle.PickleBuffer(bytearray(1000))))
tell("kept", kept)
{FOREVER}"""
    runs(pod, script)
    assert pod.file("kept") == "[False, True]"
    assert held_steps(pod.stopped(2)) == [(0, 1)]


def test_a_process_that_a_rank_starts_does_not_take_its_place(pod: Pod) -> None:
    script = f"""{TELL}
import subprocess, sys
from everstep.train import run
run.step(41)
child = "from everstep.train import run; print(run.is_managed); run.step(1)"
tell("child", subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
run.step(42)
{FOREVER}"""
    runs(pod, script)
    assert pod.file("child") == "False"
    state = pod.until(lambda s: s["run"] is not None and s["run"]["step"] == 42)
    assert state["run"] is not None


def test_snapshots_outlive_a_run_that_ends_before_it_restores(pod: Pod) -> None:
    runs(pod, train(5))
    pod.file("made-1-0")
    pod.stopped(2)
    runs(pod, "raise SystemExit(1)", generation=2, step=5)
    state = pod.until(lambda s: any(fact["generation"] == 2 for fact in s["facts"]))
    assert held_steps(state) == [(0, 5)]


def test_without_room_there_is_a_note_and_no_snapshot(pod: Pod) -> None:
    script = f"""{TELL}
from everstep.train import buffers, run
buffers.free_bytes = lambda: 1000
tell("kept", run.snapshot(1, {{"weights": bytearray(2000)}}))
{FOREVER}"""
    runs(pod, script)
    assert pod.file("kept") == "False"
    state = pod.until(lambda s: any("keeps no snapshot" in note for note in s["notes"]))
    assert held_steps(state) == []
    until(
        lambda: "everstep: rank 0 keeps no snapshot in memory" in pod.log(),
        what="a line in the log",
    )


def test_a_kill_while_a_script_goes_back_does_not_leave_the_later_snapshot(pod: Pod) -> None:
    script = f"""{TELL}
import os, pickle, signal
from everstep.train import run, states
run.restore()
for step in (99, 100):
    run.snapshot(step, step)
states._Bytes.copy_into = lambda part, place: os.kill(os.getpid(), signal.SIGKILL)
run.snapshot(50, pickle.PickleBuffer(bytearray(1000)))
"""
    runs(pod, script)
    state = pod.until(lambda s: any(fact["kind"] == "process.exit" for fact in s["facts"]))
    assert held_steps(state) == []


def test_the_library_works_from_what_its_page_says_to_copy(tmp_path: Path) -> None:
    """The copy works in an image without Everstep; without an agent every call does nothing."""
    package, copy = Path(everstep.__file__).parent, tmp_path / "everstep"
    shutil.copytree(package / "train", copy / "train")
    shutil.copytree(package / "protocol", copy / "protocol")
    shutil.copy(package / "free_memory.py", copy)
    script = (
        "from everstep.train import run; print(run.restore(), run.snapshot(1, {}), run.step(1))"
    )
    command = [sys.executable, "-S", "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env={}, check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("None False None\n", "")
