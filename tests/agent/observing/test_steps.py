"""Steps are found in what ranks print, and no pattern holds up the agent."""

from __future__ import annotations

import time

import pytest

from everstep.agent.observing import matching, steps
from tests.agent.pod import Pod

# A matcher that goes back and tries again is not done with any of them today.
ENDLESS = (r"(a+)+=(?P<step>\d+)", r"(?:a|a)*=(?P<step>\d+)", r"(.*)*=(?P<step>\d+)")
BUSY_S = 20.0
"""Seconds of processor time: much more than required, much less than a slow pattern takes."""


def reader(pattern: str | None = None) -> steps.StepReader:
    return steps.StepReader(steps.Search(steps.pattern(pattern)))


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (b"step 1\nstep 2\n", 2),
        (b"Step: 3 loss 0.5\rStep: 4 loss 0.4\r", 4),
        (b"step 5 of step 6\nloss\n", 6),
        (b"step\t=\t7\n", 7),
        (b"step : 8 \nsteps 9\nstep 10", 8),
        (b"stepping 1\nmisstep 2\nstep: : 3\n", None),
    ],
)
def test_default_finds_the_newest_step_in_whole_lines(text: bytes, step: int | None) -> None:
    assert reader().newest(text) == step


def test_a_line_in_two_pieces_is_one() -> None:
    step_reader = reader(r"iteration (?P<step>[0-9.]+)")
    assert [step_reader.newest(piece) for piece in (b"itera", b"tion 1", b"2\nx\n")] == [
        None,
        None,
        12,
    ]


@pytest.mark.parametrize(
    "line", [b"step" + b" " * 10**6, b"step=" + b"\t" * 10**6, b"step " * 10**5]
)
def test_default_takes_linear_time(line: bytes) -> None:
    before = time.thread_time()
    assert reader().newest(line + b"\nstep 1x\n" + line + b"x\n") == 1
    assert time.thread_time() - before < BUSY_S


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_backtracks_for_ever_is_given_up(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The agent of the last test here has the usual limit.
    monkeypatch.setattr(matching, "LIMIT_S", 0.2)
    search = steps.Search(steps.pattern(pattern))
    step_reader = steps.StepReader(search)
    assert (step_reader.newest(b"a=1\n"), search.is_given_up) == (1, False)
    before = time.thread_time()
    assert (step_reader.newest(b"a" * 4000 + b"!\n"), search.is_given_up) == (None, True)
    assert step_reader.newest(b"a=2\n") is None, "it had its time"
    assert time.thread_time() - before < BUSY_S


def test_a_sloppy_pattern_is_read_on_in_long_lines() -> None:
    search = steps.Search(steps.pattern(r".*loss.*step (?P<step>\d+)"))
    lines = b"x" * steps.SCANNED + b"\nloss 1 step 2 " + b"x" * steps.SCANNED + b"\n"
    assert (steps.StepReader(search).newest(lines), search.is_given_up) == (None, False)
    assert steps.StepReader(search).newest(b"loss 1 step 3\n") == 3


@pytest.mark.long
def test_an_agent_gives_up_the_pattern_and_counts_every_sign_of_life_as_a_step(pod: Pod) -> None:
    """Only here an agent needs its whole patience with a pattern; quick ones give up slower ones sooner."""
    # One piece of output is matched from its end: the step has to be read before the rest is written.
    script = (
        "import os, time\nprint('a=1', flush=True)\n"
        "while not os.path.exists('step_was_read'): time.sleep(0.01)\n"
        "while True:\n    time.sleep(0.1)\n    print('a' * 4000, flush=True)\n"
    )
    pod.runs(script, log_pattern=ENDLESS[0])
    pod.until(lambda s: s["run"] is not None and s["run"]["step"] == 1)
    (pod.home / "step_was_read").touch()
    state = pod.until(lambda s: steps.TOO_SLOW in s["notes"])
    assert state["run"] is not None
    assert (state["run"]["step"], state["run"]["failed"]) == (1, None)
    assert state["run"]["unread"]
    before = state["run"]["step_at"] or 0.0
    pod.until(lambda s: s["run"] and (s["run"]["step_at"] or 0.0) > before)
