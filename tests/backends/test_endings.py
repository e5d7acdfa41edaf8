"""Ends of ranks that no agent reported: anything written in that time may be cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from everstep.agent.storage import checkpoints
from everstep.agent.storage.checkpoint_formats import Item
from everstep.backends.agents import endings
from everstep.backends.agents.client.watch import WatchedAgent, with_spans_of_ends
from everstep.backends.agents.job_record import JobRecord
from everstep.protocol import wire
from tests.backends.agents.test_clocks import agent_state_at
from tests.backends.agents.test_watch import Pod

WALL_NOW, NOW = 1_700_000_000.0, 500.0


def is_covered(record: JobRecord, age_s: float) -> bool:
    """Whether a file that was changed so long ago counts as cut off."""
    item = Item(Path("step-1"), 1, WALL_NOW - age_s)
    return checkpoints._is_cut_off(item, record.ended_between)


@pytest.mark.parametrize("passed_s", [0.2, 1.0, 7.5, 35.0])
def test_all_of_the_time_in_which_ranks_ended_unseen_is_covered(passed_s: float) -> None:
    began = NOW - passed_s
    record = endings.between(JobRecord(id="demo"), began, NOW, now=NOW, wall_now=WALL_NOW)
    ages = [passed_s * share / 100 for share in range(101)]
    assert [age for age in ages if not is_covered(record, age)] == []
    assert not is_covered(record, passed_s + 5.0)
    assert not is_covered(record, -5.0)


def test_a_worker_that_comes_an_hour_later_notes_no_more_than_the_time_in_which_they_ended() -> (
    None
):
    began = NOW - 3600.0
    record = endings.between(JobRecord(id="demo"), began, began + 35.0, now=NOW, wall_now=WALL_NOW)
    assert len(record.ended_between) == 1
    assert is_covered(record, 3600.0)
    assert is_covered(record, 3565.0)
    assert not is_covered(record, 3500.0)


def agent_with(rank: wire.RankSeen) -> WatchedAgent:
    """An agent of this rank alone."""
    state = agent_state_at(now=NOW)
    assert state["run"] is not None
    state["run"]["ranks"] = [rank]
    return WatchedAgent(link=Pod(), state=state)


def rank_of(*, is_alive: bool) -> wire.RankSeen:
    state = agent_state_at(now=NOW)
    assert state["run"] is not None
    ranks: list[wire.RankSeen] = state["run"]["ranks"]
    return ranks[1 if is_alive else 0]


def test_an_end_that_its_agent_did_not_see_may_have_cut_off_all_that_was_written_meanwhile() -> (
    None
):
    rank: wire.RankSeen = {**rank_of(is_alive=False), "exited_at": NOW - 5}
    rank["ended_between"] = (NOW - 65, NOW - 5)
    record = endings.with_ends_of(
        JobRecord(id="demo"), agent_with(rank), now=NOW, wall_now=WALL_NOW
    )
    assert [age for age in range(5, 66) if not is_covered(record, age)] == []
    assert not is_covered(record, 70.0)


def test_an_end_in_a_time_of_hours_displaces_no_other_and_covers_all_of_the_time() -> None:
    rank: wire.RankSeen = {**rank_of(is_alive=False), "exited_at": NOW - 5}
    rank["ended_between"] = (NOW - 36_000, NOW - 5)
    yesterday = JobRecord(id="demo", ended_between=((int(WALL_NOW - 86_400),) * 2,))
    record = endings.with_ends_of(yesterday, agent_with(rank), now=NOW, wall_now=WALL_NOW)
    ages = [86_400, *range(5, 36_001)]
    assert [age for age in ages if not is_covered(record, age)] == []


def test_a_second_time_of_hours_in_which_ranks_ended_displaces_nothing_of_the_first_one() -> None:
    record = JobRecord(id="demo")
    spans = ((20 * 3600, 10 * 3600), (8 * 3600, 100))
    for oldest, newest in spans:
        began, ended = NOW - oldest, NOW - newest
        record = endings.between(record, began, ended, now=NOW, wall_now=WALL_NOW)
    ages = [age for span in spans for age in span]
    assert [age for age in ages if not is_covered(record, age)] == []
    assert not is_covered(record, 9 * 3600)


def test_a_worker_that_stood_still_for_a_minute_covers_all_of_it() -> None:
    agent = agent_with(rank_of(is_alive=True))
    record = endings.with_ends_of(
        JobRecord(id="demo"), agent, now=NOW, wall_now=WALL_NOW, ended_since=NOW - 60
    )
    assert [age for age in range(61) if not is_covered(record, age)] == []


def test_a_worker_that_got_no_answer_covers_the_time_around_its_request() -> None:
    agent = replace(agent_with(rank_of(is_alive=True)), silent_since=NOW - 590)
    record = endings.with_ends_of(
        JobRecord(id="demo"), agent, now=NOW, wall_now=WALL_NOW, ended_since=NOW - 600
    )
    assert is_covered(record, 600.0)
    assert is_covered(record, 590.0 - endings.UNHEARD_S)
    assert not is_covered(record, 500.0)
    assert is_covered(record, 0.5), "the agent may have been suspended, and be killed only now"


def test_an_agent_of_an_earlier_version_that_was_silent_reports_no_exact_end() -> None:
    before, after = agent_state_at(now=NOW - 60), agent_state_at(now=NOW)
    assert before["run"] is not None
    assert after["run"] is not None
    before["run"]["ranks"], after["run"]["ranks"] = (
        [rank_of(is_alive=True)],
        [rank_of(is_alive=False)],
    )
    for run in (before["run"], after["run"]):
        del run["ranks"][0]["ended_between"]  # such an agent has none
    first = with_spans_of_ends(after, before, alive_at=NOW - 60)
    next_one = with_spans_of_ends(after, first, alive_at=None)
    for state in (first, next_one):
        assert state["run"] is not None
        assert state["run"]["ranks"][0]["ended_between"] == (NOW - 60, NOW - 1)
