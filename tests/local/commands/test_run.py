"""`everstep run` on this machine: a real server, a real worker, real processes, real faults.

Only here one command begins and ends all of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.agent.storage.fence import Fence
from everstep.client.serving import running
from tests.support.devserver import DevServer
from tests.support.machine import (
    EVERSTEP,
    EXAMPLES,
    STEPS,
    Machine,
    example,
    final,
    synthetic,
    undisturbed,
    until_printed,
)
from tests.support.patience import HUNG_S
from tests.support.workerproc import WorkerProcess


@pytest.mark.long
def test_a_script_that_knows_nothing_of_us_runs_to_its_end_once(
    machine: Machine, tmp_path: Path
) -> None:
    job = example("single", tmp_path / "single", **{'"--steps", "100"': '"--steps", "10"'})
    ended = machine.everstep("run", str(job))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "main completed" in ended.stdout
    assert (tmp_path / "single" / "out").is_dir(), "relative paths begin at the document"
    assert "step 10" in machine.everstep("logs", "single").stdout
    assert machine.processes() == []
    again = machine.everstep("run", str(job))
    assert (again.returncode, "`everstep run --fresh" in again.stderr) == (2, True)


@pytest.mark.long
def test_a_crash_and_a_lost_node_cost_no_bit_of_the_weights(
    machine: Machine, tmp_path: Path
) -> None:
    expected = undisturbed(tmp_path / "alone")
    job = synthetic(tmp_path / "together")
    with machine.running("run", str(job), "--nodes", "5") as process:
        output_lines = until_printed(process, "step ")
        machine.fault("kill synthetic 2")
        output_lines += until_printed(process, "restart 1: started")
        machine.fault("node-down n1")
        output_lines += until_printed(process, "restart 2: started")
        rest, _ = process.communicate(timeout=HUNG_S)
    output = "".join(output_lines) + rest
    assert process.returncode == 0, output
    assert "crash of rank 2 on n2: signal 9 -> in_place" in output
    assert "node on n1 -> pod" in output
    assert "restart 3" not in output
    assert final(tmp_path / "together") == expected
    (records,) = (tmp_path / "together" / "out").glob("*_restartable")
    lines = [line.split(" ", 2) for line in (records / "run.log").read_text().splitlines()]
    assert [who for who, _, _ in lines if who != "[main]"] == ["[run_1]", "[run_2]", "[run_3]"]
    assert lines[-1][2] == "phase main completed"
    runs = json.loads((records / "summary.json").read_text())["runs"]
    assert [run["status"] for run in runs] == ["failed", "failed", "success"]
    assert runs[-1]["ending_step"] == STEPS
    assert machine.processes() == []


@pytest.mark.long
def test_killed_workers_cost_a_healthy_job_nothing(machine: Machine, tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    job = synthetic(tmp_path / "together")
    killed: set[int] = set()
    with machine.running("run", str(job)) as process:
        until_printed(process, "step ")
        while len(killed) < 3:
            for pid in machine.workers():
                if pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0, output
    assert "restart" not in output
    assert final(tmp_path / "together") == expected
    assert machine.processes() == []


@pytest.mark.long
def test_ctrl_c_ends_the_job_and_leaves_nothing(machine: Machine, tmp_path: Path) -> None:
    job = synthetic(tmp_path / "together")
    with machine.running("run", str(job)) as process:
        until_printed(process, "step ")
        process.send_signal(2)
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130, output
    assert "stopped" in output
    assert "Traceback" not in output
    assert machine.processes() == []


@pytest.mark.long
def test_who_ended_a_job_is_named_and_its_story_goes_on(machine: Machine, tmp_path: Path) -> None:
    job = synthetic(tmp_path / "together")
    with machine.running("run", str(job)) as process:
        lines = until_printed(process, "main running, generation 1")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=HUNG_S)
    output = "".join(lines) + rest
    assert process.returncode == 130, output
    assert "stopped: SIGTERM" in output
    assert output.count("main running, generation 1") == 1
    times = [float(line.split()[0]) for line in output.splitlines() if " s  " in line]
    assert times == sorted(times), output


@pytest.mark.long
def test_the_question_of_ctrl_c_holds_nothing_up(machine: Machine, tmp_path: Path) -> None:
    """A worker that dies meanwhile is brought back, and a second Ctrl-C leaves the job at once."""
    hand, terminal = os.openpty()
    job = synthetic(tmp_path / "together")
    with machine.running("run", str(job), stdin=terminal) as process:
        until_printed(process, "step ")
        process.send_signal(signal.SIGINT)
        until_prompt(process)
        os.write(hand, b"what\n")
        until_prompt(process)
        (killed,) = machine.workers()
        os.kill(killed, signal.SIGKILL)
        while not set(machine.workers()) - {killed}:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=HUNG_S)
    os.close(hand)
    os.close(terminal)
    assert process.returncode == 130, output
    (line,) = output.splitlines()[1:]
    assert line.startswith("synthetic goes on")
    assert machine.workers() == []
    assert machine.processes() != [], "its ranks were to go on"


def until_prompt(process: subprocess.Popen[str]) -> None:
    """The question waits at the end of its line."""
    assert process.stdout is not None
    text = ""
    while not text.endswith("[s] "):  # nobody else would serve it
        read = process.stdout.read(1)
        assert read, f"it ended before it asked: {text}"
        text += read


@pytest.mark.long
def test_a_lost_terminal_costs_no_restart_of_the_job(machine: Machine, tmp_path: Path) -> None:
    """The run goes on with server and worker: what breaks after the connection is lost is restarted."""
    job = synthetic(tmp_path / "together")
    hand, terminal = os.openpty()
    process = subprocess.Popen(
        [*EVERSTEP, "run", str(job)],
        env=machine.env,
        preexec_fn=lambda: os.login_tty(terminal),  # noqa: PLW1509  # no other thread of ours runs
    )
    os.close(terminal)
    screen = b""
    while b"running" not in screen:
        screen += os.read(hand, 65536)
    os.close(hand)
    log = machine.home / "run-synthetic.log"
    while not log.exists() or "running" not in log.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    machine.fault("kill synthetic 0")
    assert process.wait(HUNG_S) == 0, log.read_text()
    assert "restart 1: started" in log.read_text()
    assert final(tmp_path / "together") == undisturbed(tmp_path / "alone")
    assert machine.processes() == []


@pytest.mark.long
def test_a_job_in_the_folder_of_one_that_has_ended_begins_above_its_fence(
    machine: Machine, tmp_path: Path
) -> None:
    """Its state directory may be new: the folder alone shows which generations there were."""
    job = example("single", tmp_path / "single", **{'"--steps", "100"': '"--steps", "3"'})
    fence = tmp_path / "single" / "out" / ".everstep" / "generation"
    fence.parent.mkdir(parents=True)
    earlier = Fence("earlier", "x", "another", generation=7, holds=True, released=True)
    fence.write_text(json.dumps(earlier._asdict()))
    ended = machine.everstep("run", str(job))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "restart" not in ended.stdout
    assert json.loads(fence.read_text())["generation"] == 8


@pytest.mark.long
def test_a_job_that_names_no_folder_has_one_of_its_own(machine: Machine, tmp_path: Path) -> None:
    folders = ("  model_dir: out\n", "  checkpoints: {path: out}\n")
    changes = {'"--steps", "100"': '"--steps", "3"', **dict.fromkeys(folders, "")}
    job = example("single", tmp_path / "single", **changes)
    ended = machine.everstep("run", str(job), "--id", "own")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    folder = machine.home / "jobs" / "own"
    assert (folder / ".everstep" / "generation").is_file()
    (journal,) = machine.home.rglob("run.log")
    assert journal.parent.parent == folder
    assert journal.parent.name.endswith("_restartable")
    assert journal.read_text().splitlines()[-1].endswith("phase main completed")
    assert journal.with_name("summary.json").is_file()
    assert not (tmp_path / "single" / "out" / ".everstep").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["first", "modelarts"])
def test_what_the_readme_submits_runs_from_the_top_of_the_repository(
    machine: Machine, tmp_path: Path, name: str
) -> None:
    """A copy of it, so that nothing of an earlier run is found there."""
    shutil.copytree(EXAMPLES / "single", tmp_path / "examples" / "single")
    document = (EXAMPLES / f"{name}.json").read_text()
    for text in ('"--steps", "50"', "--steps 50"):
        document = document.replace(text, text.replace("50", "3"))
    (tmp_path / "examples" / f"{name}.json").write_text(document)
    ended = machine.everstep("run", f"examples/{name}.json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "restart" not in ended.stdout
    assert [*(tmp_path / "out" / name).glob("*")], "its folder is there too"


# -- A server of others -------------------------------------------------------------------------


@pytest.fixture
def served(machine: Machine, server: DevServer, namespace: str) -> Machine:
    """The machine, with a server of its own and no worker."""
    machine.env.update(
        TEMPORAL_ADDRESS=server.address, TEMPORAL_NAMESPACE=namespace, EVERSTEP_PATIENCE_S="4"
    )
    return machine


@pytest.fixture
def worker(served: Machine, server: DevServer, namespace: str) -> WorkerProcess:
    return WorkerProcess(
        address=server.address, namespace=namespace, home=served.home, backend="local"
    )


def single(folder: Path, *, steps: int = 100, cluster: str = "local") -> Path:
    changes = {
        '"100"': f'"{steps}"',
        "  model_dir: out\n": f"  model_dir: out\n  cluster: {cluster}\n",
    }
    return example("single", folder, **changes)


@pytest.mark.long
def test_where_a_server_has_no_worker_run_brings_one_along(served: Machine, tmp_path: Path) -> None:
    ended = served.everstep("run", str(single(tmp_path / "single", steps=5)))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no worker serves queue everstep; `run` starts one" in ended.stdout
    assert "no worker answered" not in ended.stdout
    assert served.processes() == []


@pytest.mark.long
async def test_a_worker_that_died_a_moment_ago_is_not_waited_for(
    served: Machine, worker: WorkerProcess, tmp_path: Path
) -> None:
    """The server shows its last poll for minutes."""
    async with worker:
        await asyncio.to_thread(_until_it_is_seen, served)
        worker.kill9()
        ended = served.everstep("run", str(single(tmp_path / "single", steps=5)))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no worker answers; `run` starts one" in ended.stdout


@pytest.mark.long
async def test_a_worker_that_is_there_stays_alone(
    served: Machine, worker: WorkerProcess, tmp_path: Path
) -> None:
    async with worker:
        await asyncio.to_thread(_until_it_is_seen, served)
        with served.running("run", str(single(tmp_path / "single"))) as process:
            lines = until_printed(process, "step ")
            # Of those that `run` starts there is none.
            assert served.workers() == [], "".join(lines)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=HUNG_S)
        output = "".join(lines) + rest
        assert process.returncode == 130, output
        assert "stopped: Ctrl-C" in output
        assert "of our own" not in output


def _until_it_is_seen(machine: Machine) -> None:
    deadline = time.monotonic() + HUNG_S
    while "no worker serves" in (report := machine.everstep("doctor").stdout):
        assert time.monotonic() < deadline, report


@pytest.mark.long
def test_who_cannot_stop_a_job_for_want_of_a_worker_says_so(
    served: Machine, tmp_path: Path
) -> None:
    with served.running("run", str(single(tmp_path / "single", cluster="far"))) as process:
        until_printed(process, "no worker answered")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130, output
    first, last = output.splitlines()
    assert first == "stops single; Ctrl-C again leaves it alone"
    assert last.startswith("everstep: whether single took stop is not known: no worker answered")


@pytest.mark.long
def test_a_second_ctrl_c_ends_at_once(served: Machine, tmp_path: Path) -> None:
    with served.running("run", str(single(tmp_path / "single", cluster="far"))) as process:
        until_printed(process, "no worker answered")
        process.send_signal(signal.SIGINT)
        until_printed(process, "Ctrl-C again")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130, output
    (line,) = output.splitlines()
    assert line.startswith("everstep: left single before it had ended")


@pytest.mark.parametrize(
    ("answers", "has_worker"),
    [([True], True), ([False, True], True), ([False, False], False)],
    ids=["answers", "owes one answer", "owes two"],
)
async def test_a_worker_that_owes_one_answer_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, client: Client, answers: list[bool], has_worker: bool
) -> None:
    async def next_answer(*_: object) -> bool:
        return answers.pop(0)

    monkeypatch.setattr(running, "_worker_answers", next_answer)
    assert await running._has_worker(client, "demo", "local") is has_worker
    assert answers == []
