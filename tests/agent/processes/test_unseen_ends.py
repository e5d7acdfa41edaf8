"""Ends of ranks that their agent did not see are dated by what is proven, and not by when it looked again."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from everstep.agent import clock
from everstep.agent.processes import proc, rank_ends
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, exits, is_running, signal_to, until
from tests.agent.processes.test_warden import warden_of

NOTICED_S = 1.5
"""Longest time between two looks of an agent or a warden, with room for a busy machine's clock ticks."""


def is_recorded(pod: Pod) -> bool:
    file = pod.home / rank_ends.FILE
    return file.exists() and bool(json.loads(file.read_text())["ends"])


def has_passed(since: float, seconds: float) -> bool:
    return clock.now() - since > seconds


def the_rank(state: wire.AgentState) -> wire.RankSeen:
    assert state["run"] is not None
    ranks: list[wire.RankSeen] = state["run"]["ranks"]
    (rank,) = ranks
    return rank


def test_a_rank_that_ended_while_its_agent_was_suspended_ended_then(pod: Pod) -> None:
    (pid,) = pod.runs(FOREVER)
    signal_to(pod.agent.pid, signal.SIGSTOP)
    killed_at = clock.now()
    signal_to(pid, signal.SIGKILL)
    until(lambda: is_recorded(pod), what="the warden's record")
    recorded_at = clock.now()
    until(lambda: has_passed(recorded_at, 2 * rank_ends.LATE_S), what="a late look")
    signal_to(pod.agent.pid, signal.SIGCONT)
    state = pod.until(exits)
    (fact,) = exits(state)
    assert killed_at - NOTICED_S < fact["at"] <= recorded_at + NOTICED_S
    assert the_rank(state)["exited_at"] == fact["at"]


def test_without_its_warden_the_end_was_between_the_agents_looks(pod: Pod) -> None:
    (pid,) = pod.runs(FOREVER)
    signal_to(warden_of(pod), signal.SIGSTOP)
    signal_to(pod.agent.pid, signal.SIGSTOP)
    killed_at = clock.now()
    signal_to(pid, signal.SIGKILL)
    until(lambda: has_passed(killed_at, 2 * rank_ends.LATE_S), what="a late look")
    signal_to(pod.agent.pid, signal.SIGCONT)
    rank = the_rank(pod.until(exits))
    assert rank["ended_between"] is not None
    began, ended = rank["ended_between"]
    assert began <= killed_at <= ended
    assert ended == rank["exited_at"]


def test_ranks_that_ended_with_their_agent_did_so_when_it_last_marked_them_as_alive(
    pod: Pod,
) -> None:
    (pid,) = pod.runs(FOREVER)
    until(lambda: is_marked(pod), what="the agent's mark")
    killed_at = clock.now()
    signal_to(warden_of(pod), signal.SIGKILL)  # as where the kernel ends it with its agent
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    until(lambda: not is_running(pid), what="the end of the rank")
    until(lambda: has_passed(killed_at, 2 * rank_ends.LATE_S), what="a late start")
    state = pod.start().until(exits)
    (fact,) = exits(state)
    rank = the_rank(state)
    assert killed_at - NOTICED_S < fact["at"] <= killed_at + NOTICED_S
    assert rank["exited_at"] == fact["at"]
    assert rank["ended_between"] is not None
    assert rank["ended_between"][0] <= killed_at < rank["ended_between"][1]


def is_marked(pod: Pod) -> bool:
    started_at = the_rank(pod.state())["started_at"]
    return rank_ends.marked_alive_at(pod.home) > started_at


def test_no_mark_dates_an_end_before_the_start(pod: Pod) -> None:
    pod.runs(FOREVER)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    os.utime(pod.home / wire.LOCK, (0, 0))
    (pod.home / rank_ends.FILE).unlink(missing_ok=True)
    rank = the_rank(pod.start().until(exits))
    assert rank["exited_at"] is not None
    assert rank["exited_at"] >= rank["started_at"]


def test_an_agent_that_ends_while_its_ranks_start_did_so_after_their_order(pod: Pod) -> None:
    """However long it had no ranks before, and so nothing to mark."""
    os.utime(pod.home / wire.LOCK, (0, 0))
    ordered_at = clock.now()
    pod.runs(FOREVER)
    assert rank_ends.marked_alive_at(pod.home) > ordered_at - NOTICED_S


def test_the_mark_is_by_the_clock_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of files would date it by its own."""
    (tmp_path / wire.LOCK).touch()
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    rank_ends.mark_alive(tmp_path)
    assert (tmp_path / wire.LOCK).stat().st_mtime == 1_000.0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"generation": 1, "ends": {"0": [1]}}'])
def test_a_record_that_cannot_be_read_narrows_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / rank_ends.FILE).write_text(text)
    span = rank_ends.Span(1.0, 9.0)
    assert rank_ends.narrowed(tmp_path, 1, 0, span) == span


def test_the_record_holds_between_which_looks_a_rank_ended(tmp_path: Path) -> None:
    this = proc.find(os.getpid())
    assert this is not None
    record = rank_ends.EndRecord(tmp_path)
    looked_by = time.time()
    record.follow(
        {"generation": 3, "ranks": [[0, *this.identity], [1, this.pid, this.started - 1]]}
    )
    record.poll()
    now = time.time()
    written = json.loads((tmp_path / rank_ends.FILE).read_text())
    assert written["generation"] == 3
    ((rank, (began, ended)),) = written["ends"].items()
    assert rank == "1"
    assert began <= looked_by, "it may have ended before the order came"
    assert ended <= now
