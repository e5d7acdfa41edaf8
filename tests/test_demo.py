"""The demo is what a new user runs first: it works, keeps its promises, leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep import devserver
from everstep.client.jobs.glances import Glance
from everstep.core import names
from examples.demo import Broken, Trouble, document, is_due, prove, slowness
from tests.support.demos import (
    assert_ended,
    assert_nothing_is_left,
    demo,
    processes_of,
    whole_output,
)
from tests.support.machine import until_printed
from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[1]
DEMO = [sys.executable, "examples/demo.py"]


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()]


def until_it_has_one(pid: int) -> None:
    deadline = time.monotonic() + HUNG_S
    while not children(pid):
        assert time.monotonic() < deadline
        time.sleep(0.005)  # between two looks at another process, which sends no event


def are_gone(pids: list[int], *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # likewise: the end of a process that is not our child
    return True


@pytest.mark.long
def test_three_faults_cost_the_demo_no_bit_of_its_weights(tmp_path: Path) -> None:
    with demo(DEMO, tmp_path) as process:
        output = whole_output(process)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    _, _, table = output.partition("FROM STEP")
    rows = [line.split() for line in table.splitlines() if line[:1].isdigit()]
    assert [row[:2] for row in rows] == [["1", "main"], ["2", "main"], ["3", "main"]]
    for words in (
        "crash on n2  in_place    started",
        "suspension  started",
        "node on n2   pod         started",
        "They are equal, to the last bit.",
    ):
        assert words in output, output
    assert_nothing_is_left(tmp_path)


def test_a_fault_waits_for_the_one_before_and_not_for_a_number_of_restarts() -> None:
    """On a busy machine a training that waits for a processor may count as one that hangs."""
    trouble = Trouble(step=30, fault="node-down n2", meaning="a node is lost")
    over, open_ = {"stages_s": {"first_step": 0.5}}, {"stages_s": {"first_step": None}}
    gave_way = {"stages_s": {}, "result": "downgrade"}
    for restarts, due in (
        ((over,), False),
        ((over, open_), False),
        ((over, over), True),
        ((over, over, over), True),
        ((over, gave_way), False),
        ((over, gave_way, over), True),
    ):
        status = {"state": "running", "phase": "main", "step": 30}
        assert is_due(trouble, Glance(at=0.0, status=status, restarts=restarts), known=1) is due


def test_a_job_that_ended_before_its_last_fault_proves_nothing() -> None:
    early = Glance(at=0.0, status={"state": "completed"}, restarts=({"n": 1}, {"n": 2}))
    with pytest.raises(Broken, match="only 2 of 3 faults"):
        prove(early, together="same", alone="same")


@pytest.mark.parametrize(("start_s", "step_s"), [(2.0, "0.08"), (20.0, "0.40"), (900.0, "0.80")])
def test_a_busy_machine_gets_slower_steps(tmp_path: Path, start_s: float, step_s: str) -> None:
    """Else the training is over before the faults that follow a slow worker's report of it."""
    body = document(tmp_path, slowness=slowness(start_s))
    assert body["spec"]["env"]["STEP_S"] == step_s


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")


# Words that it always says: of what passes quickly it may see only the next state.
MOMENTS = [
    pytest.param("a node is lost", signal.SIGTERM, id="before the worker is there"),
    pytest.param("restart 1: crash", signal.SIGINT, id="in the middle", marks=pytest.mark.long),
    pytest.param("Ctrl-C ends it all", signal.SIGINT, id="at the end", marks=pytest.mark.long),
]


@needs_proc
@pytest.mark.parametrize(("moment", "number"), MOMENTS)
def test_a_signal_ends_every_process(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    with demo([*DEMO, "--keep"], tmp_path) as process:
        until_printed(process, moment)
        until_it_has_one(process.pid)
        started = children(process.pid)
        process.send_signal(number)
        output, _ = process.communicate(timeout=HUNG_S)
        assert started
        assert are_gone(started, within_s=0.0)
    assert process.returncode == 130
    assert_ended(output, folder=tmp_path)


@needs_proc
@pytest.mark.long
def test_nothing_outlives_a_demo_that_is_killed(tmp_path: Path) -> None:
    """Server and worker end with it; agents and ranks after a while without requests."""
    with demo(DEMO, tmp_path) as process:
        until_printed(process, "restart 1: started")
        started = children(process.pid)
        process.kill()
        assert len(started) >= 2
        assert are_gone(started, within_s=HUNG_S)
        assert are_gone(processes_of(tmp_path), within_s=HUNG_S)


def test_a_demo_without_a_server_says_so_in_one_line(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    ended = subprocess.run(
        [python, "examples/demo.py"],
        cwd=ROOT,
        env={"PATH": str(python.parent), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("demo: no `temporal` executable")
    assert ended.stderr.count("\n") == 1


def test_the_server_knows_every_search_attribute() -> None:
    attributes = devserver.search_attributes()
    assert set(attributes) == {*names.KEYWORDS, *names.INTS, *names.KEYWORD_LISTS}


def test_make_runs_the_demo() -> None:
    ended = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "demo", "ARGS=--keep"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == ".venv/bin/python examples/demo.py --keep"
