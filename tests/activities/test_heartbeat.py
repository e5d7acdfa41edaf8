"""Signs of life come by themselves, as often as they have to and no oftener; each shows what came last."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from temporalio.testing import ActivityEnvironment

from activities.heartbeat import heartbeating
from tests.support.patience import HUNG_S


async def test_however_often_something_comes_the_next_sign_of_life_shows_the_last() -> None:
    """Each of them is a call of the server, and two hundred jobs may be watched here."""
    heartbeats: list[int] = []
    all_is_shown = asyncio.Event()

    def on_heartbeat(*details: int) -> None:
        heartbeats.extend(details)
        if details == (99,):
            all_is_shown.set()

    async def work() -> None:
        async with heartbeating() as heartbeat:
            for number in range(100):
                heartbeat.beat(number)
                await asyncio.sleep(0)
            await asyncio.wait_for(all_is_shown.wait(), HUNG_S)

    environment = ActivityEnvironment()
    environment.on_heartbeat = on_heartbeat
    await environment.run(work)
    assert len(heartbeats) <= 2


async def test_a_new_try_shows_what_the_one_before_it_showed_until_it_has_something_newer() -> None:
    """A heartbeat without details would erase them, and with them what a killed worker had observed."""
    heartbeats: list[object] = []
    beaten = asyncio.Event()

    def on_heartbeat(*details: object) -> None:
        heartbeats.append(details)
        beaten.set()

    async def work() -> None:
        async with heartbeating():
            await asyncio.wait_for(beaten.wait(), HUNG_S)

    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_details=["seen before"])
    environment.on_heartbeat = on_heartbeat
    await environment.run(work)
    assert heartbeats == [("seen before",)]
