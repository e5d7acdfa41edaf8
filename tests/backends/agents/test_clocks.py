"""An agent whose clock began at another time of day is understood all the same."""

from __future__ import annotations

import pytest

from everstep.backends.agents.client.watch import clock_lead_s, in_cluster_time
from everstep.protocol import wire

HOUR = 3600.0
NOW = 1_000_000.0


def run_at(*, now: float) -> wire.RunSeen:
    """What that agent says of its ranks: one ended, one goes on."""
    rank: wire.RankSeen = {
        "rank": 0,
        "local_rank": 0,
        "pid": 1,
        "incarnation": 1,
        "can": [],
        "started_at": now - 9,
        "exited_at": now - 1,
        "ended_between": (now - 4, now - 1),
        "code": 1,
        "signal": None,
        "recent_steps": None,
    }
    return {
        "generation": 1,
        "phase": "main",
        "started_at": now - 8,
        "failed": None,
        "ranks": [rank, {**rank, "exited_at": None, "ended_between": None}],
        "stopped": False,
        "step": 3,
        "step_at": now - 2,
        "first_step_at": now - 4,
        "longest_gap_s": 1.0,
        "moved_at": None,
        "output_at": now - 5,
        "io_at": now - 5,
        "busy_at": None,
        "watched_since": now - 6,
        "checkpoint": None,
        "saved_at": now - 3,
        "save_every_s": None,
        "free_bytes": None,
        "unmatched_since": None,
        "unrecognised": None,
        "unread": False,
        "steps_from": "",
        "counts": {},
        "prewarmed": None,
    }


def agent_state_at(*, now: float) -> wire.AgentState:
    """The state of an agent whose clock shows `now`: every time in it is a fixed offset from that."""
    fact: wire.FactSeen = {
        "n": 1,
        "id": "b/1",
        "kind": "process.exit",
        "at": now - 1,
        "generation": 1,
        "rank": 0,
        "message": "",
        "details": {},
    }
    return {
        "version": 1,
        "news": 1,
        "now": now,
        "uid": "u",
        "job": "demo",
        "slot": 0,
        "node": "n0",
        "boot": "b",
        "generation": 1,
        "run": run_at(now=now),
        "helper": None,
        "stopped_below": 0,
        "kept_ranks": [],
        "positions": [],
        "evidence": None,
        "notes": [],
        "facts": [fact],
        "facts_seen": 1,
        "snapshots": [],
        "copies": [],
        "works": [{"name": "stop", "generation": 1, "began": now - 3, "ended": now - 2}],
    }


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_everything_is_as_old_as_the_agent_says(ahead: float) -> None:
    state = agent_state_at(now=NOW + ahead)
    assert in_cluster_time(state, clock_lead_s(state, now=NOW, before_s=None)) == agent_state_at(
        now=NOW
    )


def test_way_of_an_answer_is_no_other_clock() -> None:
    state = agent_state_at(now=NOW - 0.5)
    assert in_cluster_time(state, clock_lead_s(state, now=NOW, before_s=None)) is state


def test_answer_that_came_late_does_not_count() -> None:
    state = agent_state_at(now=NOW)
    soon = clock_lead_s(state, now=NOW + 0.01, before_s=None)
    assert clock_lead_s(state, now=NOW + 30, before_s=soon) == soon
    late = clock_lead_s(state, now=NOW + 30, before_s=None)
    assert clock_lead_s(state, now=NOW + 0.01, before_s=late) == soon
