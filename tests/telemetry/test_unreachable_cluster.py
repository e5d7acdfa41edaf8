"""How long a cluster has not answered a worker, as its metrics have it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from everstep.core.errors import BackendUnavailable
from everstep.telemetry import fleet as of_fleet
from everstep.telemetry.fleet import Fleet
from tests.support.devserver import DevServer


async def refuses() -> None:
    raise BackendUnavailable("the API server is away")


async def hangs() -> None:
    await asyncio.Event().wait()


async def answers() -> None:
    """The cluster is back."""


@pytest.mark.parametrize("is_away", [refuses, hangs])
async def test_it_begins_with_the_first_try_in_vain_and_ends_with_an_answer(
    server: DevServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    is_away: Callable[[], Awaitable[None]],
) -> None:
    monkeypatch.setattr(of_fleet, "CLUSTER_ANSWERS_S", 0.05)
    client = await server.connect(namespace)
    fleet = Fleet(client=client, cluster="pods", probe=is_away)
    assert fleet.cluster_unreachable_s() == 0.0
    begin = time.monotonic()
    await fleet.read()
    first = fleet.cluster_unreachable_s()
    await fleet.read()
    assert 0.0 < first < fleet.cluster_unreachable_s() <= time.monotonic() - begin
    fleet.probe = answers
    await fleet.read()
    assert fleet.cluster_unreachable_s() == 0.0
