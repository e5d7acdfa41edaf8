"""Several `everstep` on one state directory: one server, whichever comes first and goes first.

Only real processes come and go in any order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.processes import free_port
from tests.agent.pod import until
from tests.support.machine import Machine, example, until_printed
from tests.support.patience import HUNG_S


@pytest.fixture
def unnamed(machine: Machine) -> Machine:
    """The same machine for commands without a server's address."""
    env = {name: value for name, value in machine.env.items() if name != "TEMPORAL_ADDRESS"}
    return replace(machine, env=env)


def job(folder: Path, *, steps: int) -> str:
    return str(example("single", folder, **{'"--steps", "100"': f'"--steps", "{steps}"'}))


def job_until(end_file: Path, folder: Path) -> str:
    """One that is over only once this file is there."""
    train = '["python3", "train.py", "--steps", "100", "--out", "out"]'
    wait = f"while ! test -e {end_file}; do sleep 0.1; done"  # a shell has no better way to wait for a file
    gated = f'["sh", "-c", "python3 train.py --steps 5 --out out && {wait}"]'
    return str(example("single", folder, **{train: gated}))


def most_servers(machine: Machine, *ending: subprocess.Popen[str]) -> int:
    """How many servers there were at most until all of these had ended."""
    most = 0
    while any(process.poll() is None for process in ending):
        most = max(most, len(machine.servers()))
    return most


@pytest.mark.long
def test_two_runs_at_once_share_a_server_and_both_complete(
    unnamed: Machine, tmp_path: Path
) -> None:
    files = [job(tmp_path / name, steps=40) for name in ("one", "two")]
    with (
        unnamed.running("run", files[0], "--id", "one") as one,
        unnamed.running("run", files[1], "--id", "two") as two,
    ):
        servers = most_servers(unnamed, one, two)
        outputs = [one.communicate(timeout=HUNG_S)[0], two.communicate(timeout=HUNG_S)[0]]
    assert [one.returncode, two.returncode] == [0, 0], outputs
    assert servers == 1
    addresses = {line for text in outputs for line in text.splitlines() if "its UI" in line}
    assert len(addresses) == 1, outputs
    assert not any("restart" in text for text in outputs), outputs
    assert unnamed.processes() == []
    assert not list(unnamed.home.glob("worker-*.log"))


@pytest.mark.long
@pytest.mark.parametrize("end", [None, signal.SIGKILL], ids=["in order", "killed"])
def test_the_second_run_goes_on_when_the_first_has_gone(
    machine: Machine, tmp_path: Path, end: signal.Signals | None
) -> None:
    first = job(tmp_path / "one", steps=300 if end else 5)
    end_file = tmp_path / "gone"
    second = job_until(end_file, tmp_path / "two")
    with machine.running("run", first, "--id", "one") as one:
        until_printed(one, "its UI")
        with machine.running("run", second, "--id", "two") as two:
            lines = until_printed(two, "main running")
            if end is not None:
                one.send_signal(end)
            one.communicate(timeout=HUNG_S)
            end_file.touch()
            rest, _ = two.communicate(timeout=HUNG_S)
    output = "".join(lines) + rest
    assert two.returncode == 0, output
    assert "main completed" in output
    assert "restart" not in output


@pytest.mark.long
def test_a_server_that_goes_while_the_worker_of_the_second_begins_is_run_on(
    unnamed: Machine, tmp_path: Path
) -> None:
    ports = ("--port", str(free_port()), "--ui-port", str(free_port()))
    with unnamed.running("dev", *ports) as first:
        until_printed(first, "Ctrl-C ends")
        with unnamed.running("run", job(tmp_path / "two", steps=5), "--id", "two") as two:
            until(lambda: len(unnamed.workers()) == 2, what="the second worker")
            first.kill()
            output, _ = two.communicate(timeout=HUNG_S)
    assert two.returncode == 0, output
    assert "restart" not in output
    assert unnamed.processes() == []


@pytest.mark.long
def test_every_command_finds_the_server_of_its_state_directory(unnamed: Machine) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    words = ("dev", "--port", str(port), "--ui-port", str(free_port()))
    with unnamed.running(*words) as process:
        until_printed(process, "Ctrl-C ends")
        listed = unnamed.everstep("list", "--json")
        assert (listed.returncode, listed.stdout) == (0, "[]\n"), listed.stderr
        (server,) = unnamed.servers()
        os.kill(server, signal.SIGSTOP)
        silent = unnamed.everstep("list")
        os.kill(server, signal.SIGCONT)
        assert silent.returncode == 4
        assert f"{address}; a process of this machine runs it" in silent.stderr
        again = unnamed.everstep("dev")
        assert again.returncode == 2
        assert again.stderr.count("\n") == 1
        assert address in again.stderr
        assert len(unnamed.servers()) == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HUNG_S)


@pytest.mark.long
@pytest.mark.parametrize("is_named", [False, True], ids=["found", "named"])
def test_run_asks_before_it_adds_to_the_nodes_that_dev_serves(
    unnamed: Machine, tmp_path: Path, is_named: bool
) -> None:
    file = job(tmp_path / "one", steps=5)
    Path(file).write_text(Path(file).read_text().replace("spec:\n", "spec:\n  nodes: 2\n"))
    ports = ("--port", str(free_port()), "--ui-port", str(free_port()))
    with unnamed.running("dev", *ports) as process:
        until_printed(process, "Ctrl-C")
        address = {"TEMPORAL_ADDRESS": f"127.0.0.1:{ports[1]}"} if is_named else {}
        there = replace(unnamed, env={**unnamed.env, **address})
        refused = there.everstep("run", file)
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert refused.stderr.count("\n") == 1
        assert "--nodes 2" in refused.stderr
        assert len(json.loads(there.everstep("nodes", "--json").stdout)) == 1
        ended = there.everstep("run", file, "--nodes", "2")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert there.everstep("run", file, "--id", "again").returncode == 0, "it has two now"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HUNG_S)
