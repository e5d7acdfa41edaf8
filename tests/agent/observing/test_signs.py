"""Signs of life, and what is kept of ranks before they are ended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from everstep.agent.processes import proc
from everstep.protocol import wire
from tests.agent.pod import FOREVER, TELL, Pod, exits, until

BUSY = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass\n"


def moved(pod: Pod, since: float) -> wire.AgentState:
    return pod.until(lambda s: s["run"] and (s["run"]["moved_at"] or 0) > since)


def test_cpu_time_is_movement(pod: Pod) -> None:
    pod.runs(BUSY)
    first = moved(pod, 0.0)["run"]
    assert first is not None
    assert moved(pod, first["moved_at"] or 0.0)


def test_who_asks_for_quiet_is_woken_by_news_and_not_by_steps(pod: Pod) -> None:
    """Steps are reported after the quiet time; an end at once."""
    script = (
        "import itertools, os, time\nfor n in itertools.count():\n    print('step', n)\n"
        "    time.sleep(0.05)\n    n > 20 and os.path.exists('end') and os._exit(3)\n"
    )
    pod.runs(script, log_pattern=r"^step (?P<step>\d+)$")
    state = pod.until(lambda s: s["run"] and (s["run"]["step"] or 0) > 0)
    requested_at = time.monotonic()
    later = pod.quietly(state["version"], quiet_s=1.5)
    assert time.monotonic() - requested_at >= 1.5
    assert (later["version"] > state["version"], later["news"] > state["version"]) == (True, False)
    (pod.home / "end").touch()
    while later["news"] <= state["version"]:
        later = pod.quietly(later["version"], quiet_s=20.0)
    assert [fact["details"]["code"] for fact in exits(later)] == [3]
    assert time.monotonic() - requested_at < 15.0, "news do not wait for the quiet time"


def test_io_of_a_child_is_movement(pod: Pod) -> None:
    pod.runs(
        "import os, time\nif os.fork():\n    time.sleep(600)\n"
        "while True:\n    open('/dev/null', 'w').write('x'); time.sleep(0.1)"
    )
    first = moved(pod, 0.0)["run"]
    assert first is not None
    assert moved(pod, first["moved_at"] or 0.0)


def test_stopped_rank_does_not_move(pod: Pod) -> None:
    (rank,) = pod.runs(BUSY)
    moved(pod, 0.0)
    os.kill(rank, signal.SIGSTOP)
    # A look may still see what it did before it was stopped; then a whole interval is silent.
    until(lambda: is_silent(pod), what="no movement")


def shows(pod: Pod, *utilisation: object) -> str:
    """A file in which the devices show this, one after the other."""
    path, fresh = pod.home / "n0.json", pod.home / "n0.json.part"
    metrics = {str(n): {"utilisation": value} for n, value in enumerate(utilisation)}
    fresh.write_text(json.dumps({"devices": metrics}))
    fresh.replace(path)
    return str(path)


@pytest.mark.long
def test_a_device_that_shows_something_else_is_movement(pod: Pod) -> None:
    """Only several samples of a living agent show a change, and then none."""
    pod.runs(FOREVER, devices=[0, 1], metrics=shows(pod, 37, 0))
    until(lambda: is_silent(pod), what="no movement")
    before = pod.state()["run"]
    shows(pod, 37, 12)
    assert before is not None
    assert moved(pod, before["moved_at"] or 0.0)
    until(lambda: is_silent(pod), what="no movement once it is steady again")


def test_a_varying_device_moves_at_every_look(pod: Pod) -> None:
    pod.runs(FOREVER, devices=[0], metrics=shows(pod, "vary"))
    first = moved(pod, 0.0)["run"]
    assert first is not None
    second = moved(pod, first["moved_at"] or 0.0)["run"]
    assert second is not None
    assert moved(pod, second["moved_at"] or 0.0)


@pytest.mark.long
def test_devices_of_others_and_files_that_cannot_be_read_are_no_movement(pod: Pod) -> None:
    """Only several samples of a living agent show that nothing moves."""
    pod.runs(FOREVER, devices=[1], metrics=shows(pod, "vary", 5))
    until(lambda: is_silent(pod), what="no movement")
    before = pod.state()["run"]
    (pod.home / "n0.json").write_text('{"devices": [')
    after = pod.until(lambda s: s["run"] is not None and s["run"]["devices"] == [])["run"]
    assert is_silent(pod), "their use is shown no more, once"
    assert before is not None
    assert after is not None
    assert after["moved_at"] == before["moved_at"]


def is_silent(pod: Pod) -> bool:
    version = pod.state()["version"]
    return pod.state(version, 1.5)["version"] == version


def test_last_lines_are_kept_before_the_kill(pod: Pod) -> None:
    pod.runs("print('I was here')\n" + FOREVER, generation=3)
    until(lambda: "here" in pod.log(generation=3))
    state = pod.stopped(4, evidence=True)
    assert state["evidence"] == str(pod.home / "evidence" / "g3")
    assert (Path(str(state["evidence"])) / "r0.log").read_text() == "I was here\n"


def test_last_lines_of_a_rank_that_crashed_are_kept_too(pod: Pod) -> None:
    pod.run("raise ValueError('no such thing')", generation=3)
    pod.until(exits)
    state = pod.stopped(4, evidence=True)
    assert "no such thing" in (Path(str(state["evidence"])) / "r0.log").read_text()


def test_a_rank_of_python_prints_where_it_was_without_a_change_of_its_script(pod: Pod) -> None:
    pod.runs(
        f"{TELL}\nimport time\n"
        "def waits_for_ever():\n    tell('up', 1)\n    time.sleep(600)\nwaits_for_ever()"
    )
    pod.file("up")
    state = pod.stopped(2, evidence=True)
    assert "waits_for_ever" in (Path(str(state["evidence"])) / "r0.stacks").read_text()


def test_a_rank_without_a_stack_leaves_a_sentence_about_it(pod: Pod) -> None:
    pod.runs(FOREVER, env={"PYTHONFAULTHANDLER": ""})
    state = pod.stopped(2, evidence=True)
    text = (Path(str(state["evidence"])) / "r0.stacks").read_text()
    assert text.startswith("no stack of process")
    assert "install py-spy where it runs" in text


STRING = ["/bin/sh", "-c", "cd . && {script}; exit $?"]
PIPE = ["/bin/sh", "-c", "{script} 2>&1 | cat"]
WRAPPER = ["./train.sh"]
"""A file that names a shell as its interpreter, whose process is called as the file."""


@pytest.mark.parametrize("command", [STRING, PIPE, WRAPPER], ids=["string", "pipe", "wrapper"])
def test_a_script_below_a_shell_prints_where_it_was(pod: Pod, command: list[str]) -> None:
    """A `command` that is a string runs in a shell, which has no stack."""
    (pod.home / "train.py").write_text(
        f"{TELL}\nimport time\n"
        "def waits_for_ever():\n    tell('up', 1)\n    time.sleep(600)\nwaits_for_ever()"
    )
    script = f"{shlex.quote(sys.executable)} train.py"
    wrapper = pod.home / "train.sh"
    wrapper.write_text(f"#!/bin/sh\n{script}\nexit $?\n")
    wrapper.chmod(0o755)
    pod.runs([word.format(script=script) for word in command])
    pod.file("up")
    state = pod.stopped(2, evidence=True)
    assert "waits_for_ever" in (Path(str(state["evidence"])) / "r0.stacks").read_text()


def test_a_sentence_about_a_missing_stack_names_the_script_below_a_shell(pod: Pod) -> None:
    """Not the shell, which waits for it."""
    script = f"{TELL}\nimport os, signal\ntell('up', os.getpid())\nsignal.pause()"
    (pod.home / "train.py").write_text(script)
    line = f"{shlex.quote(sys.executable)} train.py; exit $?"
    pod.runs(["/bin/sh", "-c", line], env={"PYTHONFAULTHANDLER": ""})
    pid = int(pod.file("up"))
    state = pod.stopped(2, evidence=True)
    text = (Path(str(state["evidence"])) / "r0.stacks").read_text()
    assert text.startswith(f"no stack of process {pid}")


def test_stacks_are_told_by_the_signal_that_was_named_and_the_rank_lives_on(pod: Pod) -> None:
    pids = pod.runs(
        f"{TELL}\nimport faulthandler, signal, time\nfaulthandler.register(signal.SIGUSR1)\n"
        "def waits_for_ever():\n    tell('up', 1)\n    time.sleep(600)\nwaits_for_ever()",
        env={"EVERSTEP_STACK_SIGNAL": "SIGUSR1"},
    )
    pod.file("up")
    assert "waits_for_ever" in pod.ask("POST", wire.STACKS, {})["stacks"]["0"]
    assert pod.marked() == pids


def test_signal_without_a_handler_is_not_sent(pod: Pod) -> None:
    pids = pod.runs(FOREVER, env={"EVERSTEP_STACK_SIGNAL": "SIGUSR1"})
    assert pod.ask("POST", wire.STACKS, {}) == {"stacks": {}}
    assert pod.marked() == pids


def test_stopped_rank_is_not_asked(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    os.kill(rank, signal.SIGSTOP)
    until(lambda: is_stopped(rank))
    assert "is stopped" in pod.ask("POST", wire.STACKS, {})["stacks"]["0"]
    state = pod.stopped(2, evidence=True)
    assert "is stopped" in (Path(str(state["evidence"])) / "r0.stacks").read_text()


def is_stopped(pid: int) -> bool:
    process = proc.find(pid)
    return process is not None and process.is_stopped


def test_lines_that_no_pattern_matches_are_told_until_one_does(pod: Pod) -> None:
    script = (
        "import os, time\nprint('epoch 1', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "print('step 1', flush=True)\ntime.sleep(600)"
    )
    pod.runs(script, log_pattern=r"^step (?P<step>\d+)$")
    state = pod.until(lambda s: s["run"] and s["run"]["unmatched_since"])
    assert state["run"] is not None
    assert (state["run"]["unmatched_since"] or 0) <= state["now"]
    (pod.home / "go").touch()
    state = pod.until(lambda s: s["run"] and s["run"]["step"])
    assert state["run"] is not None
    assert state["run"]["unmatched_since"] is None


def test_without_a_pattern_no_line_is_missed(pod: Pod) -> None:
    pod.runs("print('epoch 1', flush=True)\nimport time\ntime.sleep(600)")
    state = moved(pod, 0.0)
    assert state["run"] is not None
    assert state["run"]["unmatched_since"] is None
