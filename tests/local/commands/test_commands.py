"""What else `everstep` does on this machine: serve it, break it, read logs. Mistakes end in a sentence.

Only commands that are processes take Ctrl-C and leave a state to the next.
"""

from __future__ import annotations

import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.processes import free_port
from tests.support.machine import Machine, until_printed
from tests.support.patience import HUNG_S


def test_what_can_be_broken_is_listed(machine: Machine) -> None:
    listed = machine.everstep("fault", "list")
    assert listed.returncode == 0
    assert "node-down NODE [partition]" in listed.stdout


def test_a_mistake_ends_in_one_sentence(machine: Machine) -> None:
    """As a process; the others are shown in tests/cli/running_here/test_mistakes.py."""
    ended = machine.everstep("logs", "nothing")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (3, "", 1)
    assert "and no server answers whether this job exists" in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "code", "sentence"),
    [
        ({"EVERSTEP_TIME_SCALE": "abc"}, 2, "EVERSTEP_TIME_SCALE is 'abc'"),
        ({"EVERSTEP_TIME_SCALE": "0"}, 2, "greater than 0"),
        ({}, 4, "file is not a database"),
    ],
)
def test_a_worker_that_cannot_begin_is_told_by_its_last_line(
    machine: Machine, settings: dict[str, str], code: int, sentence: str
) -> None:
    machine.home.mkdir()
    if not settings:
        (machine.home / "local.db").write_text("no database, but long enough for a header\n" * 99)
    ended = replace(machine, env={**machine.env, **settings}).everstep(
        "run", "examples/single/job.yaml"
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1)
    assert sentence in ended.stderr
    assert str(machine.home / "worker.log") in ended.stderr
    assert "Traceback" not in ended.stderr
    assert machine.processes() == []


def test_a_port_that_is_taken_is_said(machine: Machine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ended = machine.everstep("dev", "--port", port, "--ui-port", str(free_port()))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"port {port} already" in ended.stderr
    assert "--ui-port" in ended.stderr


@pytest.mark.long
def test_dev_serves_until_ctrl_c_and_the_next_one_finds_its_state(machine: Machine) -> None:
    port, ui_port = str(free_port()), str(free_port())
    words = ("dev", "--nodes", "2", "--port", port, "--ui-port", ui_port)
    for _ in range(2):
        with machine.running(*words) as process:
            lines = until_printed(process, "Ctrl-C ends")
            assert f"server  127.0.0.1:{port}\n" in lines
            again = machine.everstep(*words)
            assert (again.returncode, f"127.0.0.1:{port}" in again.stderr) == (2, True)
            assert machine.everstep("fault", "node-down", "n1").returncode == 0
            words_of_code = ("fault", "device", "n0", "0", "XID 79", "--severity", "minor")
            assert machine.everstep(*words_of_code).returncode == 0
            wrong = machine.everstep("fault", "node-down", "n7")
            assert "try one of n0, n1" in wrong.stderr
            process.send_signal(signal.SIGINT)
            last_output, _ = process.communicate(timeout=HUNG_S)
        assert process.returncode == 130, last_output
        assert "Traceback" not in last_output
        assert machine.processes() == []


@pytest.mark.long
def test_what_dev_is_told_its_worker_is_told(machine: Machine) -> None:
    settings = {
        "EVERSTEP_PRECHECK__ROOT_GB": "99999",
        "EVERSTEP_CONCURRENCY": "7",
        "EVERSTEP_JANITOR": "false",
        "EVERSTEP_NODES": "3",
        "EVERSTEP_DEVICES": "2",
    }
    teller = replace(machine, env={**machine.env, **settings, "EVERSTEP_BACKEND": "fake"})
    words = ("dev", "--devices", "4", "--port", str(free_port()), "--ui-port", str(free_port()))
    with teller.running(*words) as process:
        output = "".join(until_printed(process, "Ctrl-C ends"))
        (worker,) = machine.workers()
        environ = Path(f"/proc/{worker}/environ").read_bytes().decode().split("\0")
    assert "nodes   3 with 4" in output
    expected = {**settings, "EVERSTEP_DEVICES": "4", "EVERSTEP_BACKEND": "local"}
    assert {f"{name}={value}" for name, value in expected.items()} <= set(environ)
