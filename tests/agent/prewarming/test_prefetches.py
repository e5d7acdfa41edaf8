"""Prefetches that an agent runs beside its ranks: start, output, reports and end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everstep.agent.processes import proc
from everstep.agent.storage import journal
from everstep.protocol import wire
from tests.agent.pod import LIBRARIES, Pod, is_running, until

STEPS = r"step (?P<step>\d+)"
TRAINS = "import time; print('step 1', flush=True); time.sleep(1000)"
NO_STEP = "import time; print('importing', flush=True); time.sleep(1000)"
WRITES_PID = "echo $$ > $HOMEDIR/tried"
BEGAN = 1_800_000_000.0


def plan(pod: Pod, nodes: int, script: str, **more: Any) -> wire.PrefetchPlan:
    folders = {**LIBRARIES, "PATH": os.environ["PATH"], "HOMEDIR": str(pod.home)}
    env = {**folders, "EVERSTEP_POD": pod.uid}
    return {
        "nodes": nodes,
        "command": ["/bin/sh", "-c", script],
        "env": {**env, "NNODES": str(nodes)},
        "files": {},
        "log": f"compiles/{nodes}.log",
        "began": BEGAN,
        "owner": {"workflow_id": "demo"},
        **more,  # type: ignore[typeddict-item]  # of the same fields
    }


def prefetch_results(state: wire.AgentState) -> list[tuple[str, int]]:
    facts = (f for f in state["facts"] if f["kind"].startswith("prefetch."))
    return [(fact["kind"], fact["details"]["nodes"]) for fact in facts]


def trains(pod: Pod, *plans: wire.PrefetchPlan, script: str = TRAINS, **more: Any) -> None:
    pod.runs(script, log_pattern=STEPS, prefetch=[*plans], **more)


def running(pod: Pod) -> int:
    return int(pod.file("tried"))


def test_each_is_run_in_its_turn_and_its_end_is_told(pod: Pod, tmp_path: Path) -> None:
    model = tmp_path / "model"
    files = {"params.yaml": "num_csx: 2\n"}
    reads = plan(pod, 2, "cat {params}; nice", files=files)
    trains(pod, plan(pod, 3, "echo does not fit $NNODES; exit 7"), reads, model_dir=str(model))
    state = pod.until(lambda state: len(prefetch_results(state)) == 2)
    assert prefetch_results(state) == [("prefetch.failed", 3), ("prefetch.done", 2)]
    failed = next(fact for fact in state["facts"] if fact["kind"] == "prefetch.failed")
    assert failed["message"] == "prefetch for 3 nodes: exit code 7"
    assert failed["details"]["phase"] == "main"
    (folder,) = model.glob("*_restartable")
    assert (folder / "compiles/3.log").read_text() == "does not fit 3\n"
    assert (folder / "compiles/2.log").read_text() == "num_csx: 2\n19\n"
    assert state["run"] is not None
    assert [rank["rank"] for rank in state["run"]["ranks"]] == [0]


def test_the_folder_is_the_one_in_which_the_phase_is_recorded(pod: Pod, tmp_path: Path) -> None:
    trains(pod, plan(pod, 1, "true"), model_dir=str(tmp_path))
    pod.until(prefetch_results)
    body: wire.JournalCommand = {
        "model_dir": str(tmp_path),
        "workdir": None,
        "began": BEGAN,
        "owner": {"workflow_id": "demo"},
        "lines": ["a line"],
        "summary": {},
        "runs": {},
        "files": {},
        "folders": [],
    }
    journal.write(body)
    (folder,) = tmp_path.glob("*_restartable")
    assert (folder / "run.log").read_text() == "a line\n"


def test_nothing_is_tried_before_the_first_step(pod: Pod) -> None:
    trains(pod, plan(pod, 1, WRITES_PID), script=NO_STEP)
    before = pod.until(lambda s: s["run"] is not None and s["run"]["moved_at"] is not None)
    until(lambda: pod.state()["now"] > before["now"] + 2.5)
    assert prefetch_results(pod.state()) == []
    assert not (pod.home / "tried").exists()


def test_the_same_order_again_begins_nothing_again(pod: Pod) -> None:
    only = plan(pod, 1, "echo x >> $HOMEDIR/begun")
    for _ in range(2):
        trains(pod, only)
        pod.until(prefetch_results)
    assert pod.file("begun") == "x"


def test_one_that_is_killed_or_cannot_be_run_says_nothing(pod: Pod) -> None:
    missing = plan(pod, 3, "", command=["/no/such/program"])
    trains(pod, missing, plan(pod, 2, "kill -9 $$"), plan(pod, 1, "exit 143"), plan(pod, 4, "true"))
    state = pod.until(prefetch_results)
    assert prefetch_results(state) == [("prefetch.done", 4)]
    assert [note for note in state["notes"] if "prefetch" in note] == [
        "prefetch for 3 nodes has no result: /no/such/program: No such file or directory",
        "prefetch for 2 nodes has no result: signal 9",
        "prefetch for 1 node has no result: exit code 143",
    ]


DEAF = f"trap '' TERM; {WRITES_PID}; setsid sleep 1000 & while :; do sleep 0.05; done"


def test_a_stop_with_grace_does_not_wait_for_it(pod: Pod) -> None:
    trains(pod, plan(pod, 1, DEAF))
    pid = running(pod)
    before = pod.state()["now"]
    state = pod.stopped(2, grace_s=1000.0)
    assert state["now"] - before < 500.0, "the rank alone is asked, and ends at once"
    assert not is_running(pid)
    assert pod.marked() == []
    assert prefetch_results(state) == []


def test_it_ends_with_the_ranks_that_failed(pod: Pod) -> None:
    fails = "import time; print('step 1', flush=True); open('go').read(); raise SystemExit(3)"
    os.mkfifo(pod.home / "go")
    trains(pod, plan(pod, 1, DEAF), script=fails)
    pid = running(pod)
    (pod.home / "go").write_text("")
    until(lambda: not is_running(pid), what="its end")
    assert prefetch_results(pod.state()) == []


def test_nothing_of_it_outlives_its_agent(pod: Pod) -> None:
    trains(pod, plan(pod, 1, DEAF))
    pid = running(pod)
    pod.agent.send_signal(signal.SIGKILL)
    until(lambda: not is_running(pid), what="its end")
    pod.start()
    state = pod.until(lambda state: state["stopped_below"] > 1)
    assert pod.marked() == []
    assert prefetch_results(state) == []


@contextlib.contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold the lock of the journal's folder, as a process on another machine does."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def has_open(pod: Pod, path: Path) -> bool:
    handles = Path(f"/proc/{pod.agent.pid}/fd").iterdir()
    with contextlib.suppress(FileNotFoundError):  # one of them was closed meanwhile
        return str(path) in map(os.readlink, handles)
    return False


def test_a_log_that_is_opened_late_is_none_of_the_next_run(pod: Pod, tmp_path: Path) -> None:
    folder = tmp_path / f"{datetime.fromtimestamp(BEGAN, tz=UTC):%Y%m%d_%H%M%S}_restartable"
    folder.mkdir()
    older, newer = folder / "compiles/3.log", folder / "compiles/2.log"
    script = "echo $NNODES"
    with held(folder / journal.LOCK):
        trains(pod, plan(pod, 3, script), model_dir=str(tmp_path))
        until(lambda: has_open(pod, folder / journal.LOCK), what="the opening")
        trains(pod, plan(pod, 2, script), model_dir=str(tmp_path), generation=2)
    assert prefetch_results(pod.until(prefetch_results)) == [("prefetch.done", 2)]
    assert newer.read_text() == "2\n"
    until(older.exists, what="the late one")
    until(lambda: not has_open(pod, older), what="its closing")
    assert older.read_text() == ""


def test_it_is_no_sign_of_life_of_the_run(pod: Pod) -> None:
    works = f'{WRITES_PID}; exec {sys.executable} -c "while True: pass"'
    trains(pod, plan(pod, 1, works))
    pid = running(pod)
    until(lambda: cpu(pid) > 20, what="work")
    first = pod.state()
    until(lambda: cpu(pid) > 200, what="more work")
    assert first["run"] is not None
    later = pod.state()
    assert later["run"] is not None
    assert later["run"]["moved_at"] == first["run"]["moved_at"]


def cpu(pid: int) -> int:
    process = proc.find(pid)
    assert process is not None
    return process.cpu
