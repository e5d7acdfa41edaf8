"""Many commands at once, sent while no worker lives: they cost a job one turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest
from temporalio.client import Client

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.floods import Flood, send
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.scene import restarts_of, tell, until_state
from tests.support.stage import document

FIRST = {"pauses": "paused", "restarts": "recovering"}
"""The state to which the flood leads; time stands still until then."""

FLOODS: Mapping[str, Flood] = {
    "pauses": [("pause", {}), ("resume", {})] * 50,
    "restarts": [("restart", {"reason": "again"})] * 100,
    "changes": [("hot_update", {"patch": {"limits": {"hang_s": 77}}})] * 30,
    "devices": [
        ("report_fault", {"kind": "subhealth.power", "node": "n1", "device": 0, "id": f"{n}"})
        for n in range(2_100)
    ],
    "nonsense": [("resume", {}), ("halt", {}), ("restart", {"level": "all"})] * 30,
}
COSTLY = ("pauses", "changes")
"""Left to the long tests: the others bring a flood that acts, and one that is refused."""
LEFT = {kind: [("planned", "in_place", "success")] for kind in ("pauses", "restarts")}
"""Restarts that the flood leads to: the one after the last pause, and one for all restarts."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=pytest.mark.long) if k in COSTLY else k for k in FLOODS],
)
async def test_a_flood_of_signals_costs_one_turn(client: Client, kind: str) -> None:
    backend = FakeBackend(FakeSettings(nodes=6))
    clock = StandingClock(backend)
    async with at_work(thinker(client), actor(client, backend)):
        job = await clock.hold_with(backend.admin, submit(client, document()))
        await clock.pass_to(34)
        await until_state(job, "running")
    await send(job, FLOODS[kind])
    if kind == "pauses":
        await job.signal("pause")
    async with at_work(thinker(client), actor(client, backend)):
        if kind in FIRST:
            await until_state(job, FIRST[kind])
        await clock.let_go()
        if kind == "pauses":
            await tell(job, "resume")
        report = await asyncio.wait_for(job.result(), HUNG_S)
        assert report["status"] == "Completed"
        messages = Counter(event["message"] for event in await job.query("events"))
        assert messages.most_common(1)[0][1] == 1, messages
    assert restarts_of(report) == LEFT.get(kind, [])
