"""Every case once more with real processes, and again with the worker killed in the middle of it.

Only here real agents and ranks of this machine meet every rule of a document. A case of several restarts is
played with the kill alone: it falls into the last of them, and those before it are undisturbed. Each has a
state directory, a namespace and a worker of its own, so some are played at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.cases.case import Case
from tests.cases.on_machine import OnMachine
from tests.cases.on_processes import has_several_restarts
from tests.cases.seen import differences
from tests.cases.table import CASES
from tests.support.devserver import DevServer
from tests.support.playing.at_once import begun

Part = tuple[Case, bool]
REAL = [case for case in CASES if case.is_real]


async def play(part: Part, server: DevServer, home: Path) -> list[str]:
    case, kills_worker = part
    client = await server.connect(await server.new_namespace("case"))
    result = await OnMachine(server, client, home, case).play(kills_worker=kills_worker)
    return differences(case, result)


Played = Mapping[str, asyncio.Task[list[str]]]


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest, server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Played]:
    folder = tmp_path_factory.mktemp
    async with begun(request, lambda part: play(part, server, folder("case"))) as tasks:
        yield tasks


@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    [
        pytest.param((case, kills), id=f"{case.id}-{'worker-killed' if kills else 'undisturbed'}")
        for case in REAL
        for kills in ((True,) if has_several_restarts(case) else (False, True))
    ],
)
async def test_case_with_real_processes(
    part: Part, request: pytest.FixtureRequest, played: Played
) -> None:
    assert await played[request.node.name] == []
