"""Many commands at once, sent while no worker lives: they cost a job one turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from temporalio.client import Client

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core import names
from everstep.core.recovering.isolations import ENTRIES_MOST
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.floods import Flood, send
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.scene import refusal, restarts_of, tell, until_state
from tests.support.stage import Handle, document

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


@pytest.fixture
async def quarantine(client: Client) -> AsyncIterator[Handle]:
    """One that no worker has seen yet, with more isolations than it has room for."""
    handle = await client.start_workflow(
        names.NODE_QUARANTINE,
        {"cluster": "local"},
        id=names.quarantine_id("local"),
        task_queue=names.TASK_QUEUE,
    )
    await send(handle, [("isolate", {"node": f"n{number}"}) for number in range(2_100)])
    yield handle
    await handle.terminate()


@pytest.mark.long
async def test_a_flood_of_isolations_wedges_no_quarantine(
    client: Client, quarantine: Handle
) -> None:
    """A server fails each task of a workflow that has thousands of pending activities."""
    backend = FakeBackend(FakeSettings(nodes=6))
    async with at_work(thinker(client), actor(client, backend)), asyncio.timeout(HUNG_S):
        why = await refusal(quarantine, "isolate", {"node": "one-more"})
        assert "`everstep release NODE` makes room" in why
        rows = await quarantine.query("nodes")
        assert len(rows) == ENTRIES_MOST
        await tell(quarantine, "release", node=rows[0]["name"])
        assert (await tell(quarantine, "isolate", node="one-more"))["verdict"] == "isolated"


async def test_a_full_book_makes_room_where_the_time_of_an_isolation_is_over(
    client: Client,
) -> None:
    """The cluster is to use that node again as well."""
    backend = FakeBackend(FakeSettings(nodes=6))
    await backend.ensure_isolated("n0", reason="it smokes")
    entries = {f"n{n}": isolated_node(f"n{n}", n) for n in range(ENTRIES_MOST)}
    handle = await client.start_workflow(
        names.NODE_QUARANTINE,
        {"cluster": "local", "quarantine": {"cluster": "local", "nodes": entries}},
        id=names.quarantine_id("local"),
        task_queue=names.TASK_QUEUE,
    )
    async with at_work(thinker(client), actor(client, backend)), asyncio.timeout(HUNG_S):
        assert (await tell(handle, "isolate", node="n5000"))["verdict"] == "isolated"
        while (await backend.nodes())[0].isolated:
            await asyncio.sleep(0.01)
        listed = {row["name"] for row in await handle.query("nodes")}
    await handle.terminate()
    assert (len(listed), "n0" in listed, "n5000" in listed) == (ENTRIES_MOST, False, True)


def isolated_node(name: str, number: int) -> dict[str, Any]:
    """The first one only until a moment that is over."""
    until = 1_000.0 if number == 0 else None
    return {"node": name, "reason": "x", "by": "operator", "since": 500.0, "until": until}
