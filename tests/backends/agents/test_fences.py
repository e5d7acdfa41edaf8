"""Whose fence an order has an agent write."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.backends.agents.commands.storage import write_fence
from everstep.core.world import FenceOrder, JobRef
from everstep.protocol import wire
from everstep.protocol.wire import RunOrder

WRITTEN: dict[str, Any] = {"newer": 0, "taken_by": None, "no_folder": "", "listing": None}


class Agent:
    """Keeps its requests."""

    def __init__(self) -> None:
        self.bodies: list[wire.FenceCommand] = []

    async def request(
        self, _uid: str, _method: str, _path: str, body: wire.FenceCommand, **_: float
    ) -> dict[str, Any]:
        self.bodies.append(body)
        return WRITTEN


@pytest.mark.parametrize(
    ("job", "run"),
    [
        (JobRef(id="demo", run="by-a-reset", first_run="submitted"), "submitted"),
        (JobRef(id="demo", run="submitted", first_run="submitted"), "submitted"),
        (JobRef(id="demo", run="of-an-earlier-version"), "of-an-earlier-version"),
    ],
)
async def test_a_run_that_a_reset_began_has_the_fence_of_the_run_that_was_submitted(
    job: JobRef, run: str
) -> None:
    """Its generations are given by the same books: one of the same number is the same one."""
    agent: Any = Agent()
    order = FenceOrder(job=job, generation=2, lowest_slot=0, run=RunOrder(model_dir="/out"))
    await write_fence(agent, "uid", order, cluster="local", left=())
    assert [body["run"] for body in agent.bodies] == [run]
