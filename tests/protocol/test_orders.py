"""A field of an order is written where it is defined, where a plan fills it and where an agent reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.agent import commands
from everstep.backends.agents.commands.ranks import Meeting, RankSettings, RunPlace, run_command
from everstep.core.world import JobRef, SlotStart, StartOrder
from everstep.protocol.shapes import run_json
from everstep.protocol.wire import RunOrder

VALUES: dict[str, Any] = {
    "command": ["train", "{params}"],
    "log_rules": {"oom": "out of memory"},
    "prewarm": ["torch"],
    "prewarm_auto": True,
    "log_pattern": r"step (?P<step>\d+)",
    "loss_pattern": r"loss (?P<loss>\S+)",
    "checkpoints_pattern": r"step-(?P<step>\d+)",
    "stop_siblings": False,
    "still_s": 60.0,
}

EARLIER = {
    *(
        "generation",
        "phase",
        "command",
        "env",
        "workdir",
        "ranks",
        "keep",
        "rebuild",
        "stop_siblings",
    ),
    *("log_pattern", "log_rules", "checkpoints_path", "checkpoints_format", "checkpoints_pattern"),
    *("checkpoints_of", "model_dir", "run", "cluster", "fence_s", "counts", "prewarm", "devices"),
    *("metrics", "accelerator", "still_s", "npu_look_s", "files", "prefetch"),
}
"""What a worker of an earlier version sends, and an agent of one reads."""


def body_of(order: RunOrder) -> dict[str, Any]:
    """The JSON that reaches the agent of a slot."""
    start = StartOrder(
        job=JobRef(id="demo", run="run"),
        phase="main",
        generation=1,
        run=order,
        slots={0: SlotStart(node_rank=0, schedule_count=1, process_start_count=1)},
    )
    place = RunPlace(uid="pod", agent="", devices=(), accelerator="none", metrics=None)
    settings = RankSettings(cluster="local", fence_s=1.0, environ={}, pass_env=())
    meeting = Meeting(hosts=("127.0.0.1",), port=1)
    command = run_command(start, 0, place, meeting=meeting, settings=settings)
    body: dict[str, Any] = json.loads(json.dumps(run_json(command)))
    return body


@pytest.mark.parametrize("name", RunOrder._fields)
def test_every_field_of_an_order_reaches_the_agent(name: str) -> None:
    order = RunOrder(command=["train"])._replace(**{name: VALUES.get(name, f"/the/{name}")})
    assert commands.run_command(body_of(order))["order"] == order
    assert body_of(order)[name] == getattr(order, name), "beside the others, as agents read it"


def test_nothing_that_earlier_agents_read_is_left_out_or_renamed() -> None:
    assert body_of(RunOrder(command=["train"])).keys() >= EARLIER
