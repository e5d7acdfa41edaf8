"""Agents that share a folder: one at a time, and the next one reads what the last one did."""

from __future__ import annotations

import fcntl
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep import locks
from everstep.agent import __main__ as agent_main
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, Refused, exits, is_running, signal_to, until
from tests.support.patience import HUNG_S


def test_second_agent_leaves_and_says_why_by_its_code(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    boot = pod.state()["boot"]
    assert pod.launch().wait(HUNG_S) == wire.ALREADY
    pod.agents.pop()
    assert pod.state()["boot"] == boot
    assert is_running(rank)


def test_agent_waits_for_who_only_looks_whether_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes microseconds; this one lasts until the agent has been kept out by it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agent_main, "LOOKED_AT_S", 60.0)
    refused, take = threading.Event(), fcntl.flock

    def watched(handle: int, how: int) -> None:
        try:
            take(handle, how)
        except BlockingIOError:
            refused.set()
            raise

    with (tmp_path / wire.LOCK).open("w") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_SH)
        monkeypatch.setattr(fcntl, "flock", watched)
        is_first = pool.submit(agent_main._is_first)
        assert refused.wait(HUNG_S)
        take(lock, fcntl.LOCK_UN)
        assert is_first.result(30.0)


def test_two_who_look_are_no_agent_to_each_other(idle: Pod) -> None:
    with (idle.home / wire.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert not locks.is_held(idle.home / wire.LOCK)


def test_agent_without_a_token_says_what_is_missing(idle: Pod) -> None:
    (idle.home / wire.TOKEN).unlink()
    assert idle.launch().wait(HUNG_S) == 1
    assert "token cannot be read" in idle.log_text()


def test_pid_of_the_agent_is_in_its_folder(pod: Pod) -> None:
    assert int((pod.home / wire.PID).read_text().split()[0]) == pod.agent.pid


def test_next_agent_knows_generation_and_outcome(pod: Pod) -> None:
    pod.run("import sys; sys.exit(4)", generation=5)
    before = pod.until(exits)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    pod.start()
    state = pod.until(lambda s: s["stopped_below"] > 5)
    assert state["boot"] != before["boot"]
    assert state["generation"] == 5
    assert before["run"] is not None
    assert state["run"] is not None
    assert state["run"]["ranks"] == before["run"]["ranks"]
    with pytest.raises(Refused) as refused:
        pod.run(FOREVER, generation=4)
    assert refused.value.status == wire.STALE
    again = pod.run(FOREVER, generation=5)
    assert again["run"] is not None
    assert again["run"]["ranks"][0]["code"] == 4


def test_ranks_of_a_dead_agent_are_gone_before_the_next_one_runs_any(pod: Pod) -> None:
    (old,) = pod.runs(FOREVER, generation=1)
    # Its warden would end the rank first: it must not be the only one who can.
    children = f"/proc/{pod.agent.pid}/task/{pod.agent.pid}/children"
    with open(children) as file:  # noqa: PTH123  # a file of the kernel
        other_pids = [int(pid) for pid in file.read().split() if int(pid) != old]
    for pid in other_pids:
        signal_to(pid, signal.SIGSTOP)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    pod.start()
    (new,) = pod.runs(FOREVER, generation=2)
    assert not is_running(old)
    for pid in other_pids:
        signal_to(pid, signal.SIGCONT)
    until(lambda: not any(is_running(pid) for pid in other_pids), what="the end of the old warden")
    assert is_running(new)


def test_ranks_lost_with_their_agent_are_told_by_the_next_one(pod: Pod) -> None:
    pod.runs(FOREVER, generation=1)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    pod.start()
    (fact,) = exits(pod.until(exits))
    assert fact["details"]["signal"] == 9
    assert fact["generation"] == 1


def test_state_file_that_is_not_whole_is_no_hindrance(pod: Pod) -> None:
    pod.runs(FOREVER)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    (pod.home / "state.json").write_text('{"generation": 1, "run"')
    pod.start()
    assert pod.runs(FOREVER, generation=2)


def test_folder_that_cannot_be_written_is_noted_and_the_run_goes_on(pod: Pod) -> None:
    (pod.home / wire.LOGS).write_text("in the way")
    pod.run("print('step 3')")
    state = pod.until(exits)
    assert state["run"] is not None
    assert state["run"]["step"] == 3
    assert state["run"]["ranks"][0]["code"] == 0
    assert any("log of rank 0 is not complete" in note for note in state["notes"])
