"""Every case once more with real processes, and again with the worker killed in the middle of it.

Each has a state directory, a namespace and a worker of its own, so some are played at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.converter import DATA_CONVERTER
from tests.cases.case import Case
from tests.cases.on_machine import OnMachine
from tests.cases.seen import differences
from tests.cases.table import CASES
from tests.support.devserver import DevServer

AT_ONCE = 3

Part = tuple[Case, bool]
REAL = [case for case in CASES if case.is_real]


async def play(part: Part, server: DevServer, home: Path) -> list[str]:
    case, kills_worker = part
    namespace = await server.new_namespace("case")
    client = await Client.connect(
        server.address, namespace=namespace, data_converter=DATA_CONVERTER
    )
    seen = await OnMachine(server, client, home, case).play(kills_worker=kills_worker)
    return differences(case, seen)


def _part(item: pytest.Function) -> Part:
    part: Part = item.callspec.params["part"]  # type: ignore[assignment]  # our own parameter
    return part


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest, server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, asyncio.Task[list[str]]]]:
    """Every case that is asked for, in the order of the tests, some at once."""
    stage = asyncio.Semaphore(AT_ONCE)

    async def in_turn(part: Part, home: Path) -> list[str]:
        async with stage:
            return await play(part, server, home)

    tasks = {
        item.name: asyncio.create_task(in_turn(_part(item), tmp_path_factory.mktemp("case")))
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    [
        pytest.param((case, kills), id=f"{case.id}-{'worker-killed' if kills else 'undisturbed'}")
        for case in REAL
        for kills in (False, True)
    ],
)
async def test_case_with_real_processes(
    part: Part, request: pytest.FixtureRequest, played: dict[str, asyncio.Task[list[str]]]
) -> None:
    assert await played[request.node.name] == []
