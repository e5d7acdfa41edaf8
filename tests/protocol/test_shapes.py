"""A field of a run is written where it is defined, where an agent fills it and where it is read."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.backends.agents.client.agent_views import pod_view
from everstep.backends.agents.client.watch import WatchedAgent
from everstep.backends.agents.pod import Pod as PodOfJob
from everstep.protocol import wire
from everstep.protocol.shapes import fields, in_time_of
from tests.backends.agents.test_clocks import agent_state_at
from tests.backends.agents.test_watch import Pod

STATES = (
    wire.AgentState,
    wire.RunSeen,
    wire.RankSeen,
    wire.Unrecognised,
    wire.FactSeen,
    wire.WorkSeen,
)
"""What an agent reports, where times are by its clock. Those of a `SavedState` are the storage's."""


PLACE = PodOfJob(uid="u", job="demo", slot=0, node="n0", generation=1)


def run_of(**progress: Any) -> Any:
    """The run in the view of a pod whose agent reports this."""
    state = agent_state_at(now=100.0)
    usual = {"generation": 1, "started_at": 9.0, "stopped": False, "step": 3, "ranks": []}
    run: Any = {**usual, **progress}
    state["run"] = run
    return pod_view(PLACE, WatchedAgent(link=Pod(), state=state)).run


@pytest.mark.parametrize("name", wire.RunProgress._fields)
def test_every_field_of_a_run_reaches_the_view_of_its_pod(name: str) -> None:
    value = {"step": 7, "stopped": True}.get(name, f"the {name} of a run")
    assert getattr(run_of(**{name: value}), name) == value


def test_what_an_agent_of_an_earlier_version_leaves_out_is_empty() -> None:
    assert run_of() == wire.RunProgress(generation=1, started_at=9.0, step=3)


@pytest.mark.parametrize("shape", STATES, ids=lambda shape: shape.__name__)
def test_what_is_called_a_time_is_translated(shape: type) -> None:
    ends = ("_at", "_since", "_between")
    called = [
        n
        for n in fields(shape)
        if n.endswith(ends) or n in {"at", "now", "since", "began", "ended"}
    ]
    values = {n: (50.0, 60.0) if n.endswith("_between") else 50.0 for n in called}
    moved = {n: (40.0, 50.0) if n.endswith("_between") else 40.0 for n in called}
    name = {"RunProgress": "RunSeen"}.get(shape.__name__, shape.__name__)
    assert in_time_of(name, values, 10.0) == moved
    assert in_time_of(name, dict.fromkeys(called), 10.0) == dict.fromkeys(called)


EARLIER = {
    *(
        "generation",
        "phase",
        "started_at",
        "failed",
        "ranks",
        "stopped",
        "step",
        "step_at",
        "first_step_at",
    ),
    *("longest_gap_s", "moved_at", "output_at", "io_at", "busy_at", "watched_since", "checkpoint"),
    *(
        "saved_at",
        "save_every_s",
        "free_bytes",
        "unmatched_since",
        "unrecognised",
        "unread",
        "counts",
    ),
    "prewarmed",
}
"""What an agent of an earlier version reports of a run, and a worker of one reads."""


def test_nothing_that_earlier_workers_read_is_left_out_or_renamed() -> None:
    assert {*wire.RunProgress._fields, *wire.RUN_PARTS} >= EARLIER
