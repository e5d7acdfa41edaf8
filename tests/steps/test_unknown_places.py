"""A cluster with a scheduler of its own does not say how many places it has: smaller orders are tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.core.world import PlaceOrder, PlaceState
from everstep.dialects import responses
from tests.support.playing.scenario import play, read
from tests.support.playing.simulated import Simulated

SCENARIO = Path(__file__).parents[1] / "scenarios" / "no_spare_elastic.txt"


async def test_a_job_that_may_be_smaller_goes_on_with_the_largest_order_that_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []
    ensure_placed = FakeBackend.ensure_placed

    async def placed(self: FakeBackend, order: PlaceOrder) -> PlaceState:
        state = await ensure_placed(self, order)
        if order.generation > 1 and tried[-1:] != [len(order.slots)]:
            tried.append(len(order.slots))
        return state if state.placed else replace(state, places=None)

    monkeypatch.setattr(FakeBackend, "ensure_placed", placed)
    driver = Simulated()
    await play(read(SCENARIO), driver)
    assert tried[:2] == [4, 3]
    state, chronicle = driver.simulation.state, driver.simulation.chronicle
    assert state.ending == "Completed"
    assert "elastic" in [record["level"] for record in responses.restarts(chronicle)]
