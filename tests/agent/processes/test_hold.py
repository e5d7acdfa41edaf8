"""Ranks that hold: they report where they are and wait; what does not is stuck, and is ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.protocol import wire
from tests.agent.pod import FOREVER, TELL, Pod, is_running, signal_to

LIBRARY = {"PYTHONPATH": str(Path(everstep.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}

OUTLIVES = f"""{TELL}
import threading, time
from everstep.train import run
freed = threading.Event()
orders = run.orders(freed.set)
rank = os.environ["RANK"]
tell("ready-" + rank, os.getpid())
while True:
    freed.wait()
    freed.clear()
    rebuild = orders.await_rebuild(5 + int(rank), "a peer is gone", copies=[int(rank), 7])
    tell(f"rebuilt-{{rebuild.generation}}-{{rank}}", rebuild.env["EVERSTEP_STATE_FROM"])
"""
"""A rank that is in a collective operation until it is freed, and has completed step 5 plus its number."""
BUSY = OUTLIVES.replace("freed.wait()", "time.sleep(600)")
"""One that nothing frees."""
LONG_S = 600.0


def runs(pod: Pod, *scripts: str) -> list[int]:
    """The processes of ranks with a script each."""
    choose = "import os\nSCRIPTS = " + repr(scripts) + "\nexec(SCRIPTS[int(os.environ['RANK'])])"
    env = {**LIBRARY, "WORLD_SIZE": str(len(scripts))}
    pids = pod.runs(choose, ranks=len(scripts), env=env, stop_siblings=True)
    for number, script in enumerate(scripts):
        if script != FOREVER:
            pod.file(f"ready-{number}")
    return pids


def positions(state: wire.AgentState) -> dict[int, int | None]:
    return {one["rank"]: one["completed"] for one in state["positions"]}


def held_ranks(pod: Pod, generation: int, *keep: int, hold_s: float = LONG_S) -> wire.AgentState:
    pod.stop(generation, keep=keep, hold_s=hold_s)
    return pod.until(lambda state: state["stopped_below"] >= generation)


def rebuilt(pod: Pod, generation: int, *keep: int, ranks: int, **more: Any) -> None:
    command = {"keep": list(keep), "rebuild": {"EVERSTEP_STATE_FROM": "0"}, **more}
    pod.run(FOREVER, generation=generation, ranks=ranks, **command)
    pod.until(
        lambda s: s["run"] and s["run"]["started_at"] and s["run"]["generation"] == generation
    )


def test_a_rank_that_holds_goes_on_in_the_next_generation(pod: Pod) -> None:
    first, second = runs(pod, OUTLIVES, OUTLIVES)
    signal_to(second, signal.SIGKILL)
    pod.until(lambda state: state["facts"])
    assert is_running(first), "it can go on, so the end of its sibling does not end it"
    state = held_ranks(pod, 2, 0, 1)
    assert state["kept_ranks"] == [0]
    assert state["positions"] == [{"rank": 0, "completed": 5, "copies": [0, 7]}]
    rebuilt(pod, 2, 0, ranks=2)
    assert pod.file("rebuilt-2-0") == "0"
    assert is_running(first)


def test_it_holds_as_often_as_it_is_ordered_to(pod: Pod) -> None:
    (pid,) = runs(pod, OUTLIVES)
    for generation in (2, 3):
        assert positions(held_ranks(pod, generation, 0)) == {0: 5}
    rebuilt(pod, 3, 0, ranks=1)
    assert pod.file("rebuilt-3-0") == "0"
    assert positions(held_ranks(pod, 4, 0)) == {0: 5}
    assert is_running(pid)


def test_a_stopped_process_is_ended_at_once(pod: Pod) -> None:
    first, second = runs(pod, OUTLIVES, OUTLIVES)
    signal_to(second, signal.SIGSTOP)
    state = held_ranks(pod, 2, 0, 1)
    assert (state["kept_ranks"], positions(state)) == ([0], {0: 5})
    assert (is_running(first), is_running(second)) == (True, False)
    assert not state["facts"], "a command has ended it"


@pytest.mark.parametrize("stuck", [BUSY, FOREVER], ids=["busy", "without the library"])
def test_what_does_not_report_in_time_is_ended(pod: Pod, stuck: str) -> None:
    first, second = runs(pod, OUTLIVES, stuck)
    state = held_ranks(pod, 2, 0, 1, hold_s=0.3)
    assert (state["kept_ranks"], positions(state)) == ([0], {0: 5})
    assert (is_running(first), is_running(second)) == (True, False)
    assert "rank 1 did not hold: it is ended" in state["notes"]


def test_a_rank_that_ends_meanwhile_is_not_waited_for(pod: Pod) -> None:
    _, second = runs(pod, OUTLIVES, BUSY)
    pod.stop(2, keep=(0, 1), hold_s=LONG_S)
    signal_to(second, signal.SIGKILL)
    assert pod.until(lambda state: state["stopped_below"] >= 2)["kept_ranks"] == [0]


def test_a_newer_stop_ends_a_hold(pod: Pod) -> None:
    first, second = runs(pod, OUTLIVES, BUSY)
    pod.stop(2, keep=(0, 1), hold_s=LONG_S)
    state = held_ranks(pod, 3)
    assert (state["kept_ranks"], positions(state)) == ([], {})
    assert not is_running(first)
    assert not is_running(second)


def test_the_same_hold_again_changes_nothing(pod: Pod) -> None:
    runs(pod, OUTLIVES)
    before = held_ranks(pod, 2, 0)
    after = held_ranks(pod, 2, 0)
    assert (positions(after), after["news"]) == ({0: 5}, before["news"])


INTERRUPTED = f"""{TELL}
from everstep.train import run
orders = run.orders(lambda: None)
tell("ready-" + os.environ["RANK"], os.getpid())
orders.await_rebuild(3, "the connection was reset")
"""


def test_an_interruption_that_nothing_explains_is_a_fact(pod: Pod) -> None:
    (pid,) = runs(pod, INTERRUPTED)
    (fact,) = pod.until(lambda state: state["facts"])["facts"]
    assert (fact["kind"], fact["rank"]) == ("network.collective", 0)
    assert fact["message"] == "rank 0 was interrupted: the connection was reset"
    assert is_running(pid)
