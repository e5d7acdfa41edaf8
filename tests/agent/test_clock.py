"""The machine's clock is set: times that the agent reports stay right."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, exits, signal_to
from tests.support.patience import HUNG_S

STEPS = (
    "import time, itertools\n"
    "for n in itertools.count(1):\n    print('step', n, flush=True)\n    time.sleep(0.1)\n"
)
BEGIN = """
import os, runpy, sys, time
told, real = {told!r}, time.time
def shifted():
    try:
        with open(told) as file:
            return real() + float(file.read() or 0)
    except FileNotFoundError:
        return real()
time.time = shifted
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Setting the clock needs rights that a test has not: so the agent's own `time.time` is set instead."""


class Clock:
    """The wall clock of one agent."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set_ahead(self, seconds: float) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._path)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def set_pod(idle: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A pod whose agent has the clock."""
    begin = tmp_path / "begin.py"
    begin.write_text(BEGIN.format(told=str(tmp_path / "clock")))
    wrapper = tmp_path / "python"
    wrapper.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'  # options of the interpreter
        f'exec {sys.executable} -I {begin} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setattr("tests.agent.pod.PYTHON", str(wrapper))
    return idle.start()


def age_of_step(state: wire.AgentState) -> float:
    run = state["run"]
    assert run is not None
    step_at: float = run["step_at"]
    return state["now"] - step_at


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_age_of_a_step_is_right_whatever_is_done_to_the_clock(
    set_pod: Pod, clock: Clock, seconds: float
) -> None:
    set_pod.runs(STEPS)
    before = set_pod.until(lambda s: s["run"] and (s["run"]["step"] or 0) >= 3)
    clock.set_ahead(seconds)
    for _ in range(6):
        state = set_pod.state(before["version"], 1.0)
        assert -0.1 < age_of_step(state) < HUNG_S, (
            "a healthy rank looks as if it hung, or never could"
        )
        assert state["now"] >= before["now"], "time went back"
        before = state
    run = before["run"]
    assert run is not None
    assert run["longest_gap_s"] < HUNG_S
    assert before["now"] - (run["started_at"] or 0) < HUNG_S
    assert before["now"] - (run["moved_at"] or 0.0) < HUNG_S


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_end_of_a_rank_is_told_when_it_was(set_pod: Pod, clock: Clock, seconds: float) -> None:
    (rank,) = set_pod.runs(FOREVER)
    clock.set_ahead(seconds)
    signal_to(rank, signal.SIGKILL)
    state = set_pod.until(exits)
    (fact,) = exits(state)
    assert -0.1 < state["now"] - fact["at"] < HUNG_S
    assert abs(state["now"] - time.time()) < 60, "it is still the time of day"
