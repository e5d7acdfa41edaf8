"""Ranks save on request: once for each request, and none is ended by the signal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, Refused, until

SAVES = """
import os, signal, sys, time
step = 0
def save(*_):
    print("signalled", flush=True)
    if os.path.exists("silent"):
        return
    with open(f"out/part", "w") as file:
        file.write("x" * 100)
    os.rename("out/part", f"out/step_{step}")
signal.signal(signal.SIGUSR1, save)
helper = os.fork()  # it has the handler too, as the workers of a data loader have
open("ready" if helper else "helper", "w").close()
while True:
    step += 1
    time.sleep(0.1)
"""


def ask(pod: Pod, request: str = "r1", signal: str = "SIGUSR1", generation: int = 1) -> Any:
    command = {"generation": generation, "request": request, "signal": signal}
    return pod.ask("POST", wire.SAVE, command)


@pytest.fixture
def saving(pod: Pod) -> Pod:
    (pod.home / "out").mkdir()
    pod.runs(SAVES, checkpoints_path=str(pod.home / "out"))
    until(lambda: (pod.home / "ready").exists() and (pod.home / "helper").exists())
    return pod


def requests_received(pod: Pod) -> int:
    return pod.log().count("signalled")


def test_a_request_is_answered_with_what_was_saved_and_repeated_sends_no_signal(
    saving: Pod,
) -> None:
    first = ask(saving)
    assert (first["signalled"], first["deaf"], first["saved"]) == ([0], [], None)
    until(lambda: ask(saving)["saved"] is not None, what="a checkpoint")
    saved = ask(saving)["saved"]
    assert Path(saved["path"]).name == f"step_{saved['step']}"
    assert requests_received(saving) == 1, "neither twice, nor by what the rank has forked"
    second = ask(saving, "r2")
    assert second["saved"] is None, "what is there is older"
    until(lambda: ask(saving, "r2")["saved"] not in (None, saved), what="a newer one")
    assert requests_received(saving) == 2
    assert ask(saving)["at"] == first["at"]


def test_a_request_joins_one_that_waits(saving: Pod) -> None:
    (saving.home / "silent").touch()
    first = ask(saving)
    until(lambda: requests_received(saving) == 1)
    assert ask(saving, "r2") == first
    assert ask(saving, "r1") == first


def test_a_rank_without_a_handler_lives_on(pod: Pod) -> None:
    (pid,) = pod.runs(FOREVER)
    answer = ask(pod)
    assert (answer["signalled"], answer["deaf"], answer["saved"]) == ([], [0], None)
    assert pod.marked() == [pid]


def test_behind_a_shell_the_script_is_asked(pod: Pod) -> None:
    (pod.home / "out").mkdir()
    (pod.home / "t.py").write_text(SAVES)
    pod.runs(["sh", "-c", "python3 t.py; echo over"], checkpoints_path=str(pod.home / "out"))
    until((pod.home / "ready").exists)
    assert ask(pod)["signalled"] == [0]
    until(lambda: requests_received(pod) == 1)


def test_other_runs_and_other_signals_are_refused(saving: Pod) -> None:
    for generation in (0, 2):
        with pytest.raises(Refused, match="409"):
            ask(saving, generation=generation)
    for signal in ("SIGKILL", "", "SIGNO"):
        with pytest.raises(Refused, match="SIGUSR1, SIGUSR2"):
            ask(saving, signal=signal)
    assert requests_received(saving) == 0
