"""The cases once more with real processes, most with the worker killed in the middle of it.

Only here real agents and ranks of this machine meet every rule of a document. The kill falls into the last
restart: what comes before it is undisturbed. Those that tests/plays says are needed, and the others with
`--all-plays`; what a document's rules decide is shown in virtual time for every case. Each case has a state
directory, a namespace and a worker of its own, so some are played at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.cases.on_machine import OnMachine
from tests.cases.results import differences
from tests.plays.cases import COVERAGE, PARTS, Part, name_of, play_of
from tests.support.devserver import DevServer
from tests.support.playing.at_once import begun


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


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, id=name_of(part), marks=COVERAGE.marks(play_of(part, "machine")))
        for part in PARTS["machine"]
    ],
)
async def test_case_with_real_processes(
    part: Part, request: pytest.FixtureRequest, played: Played
) -> None:
    assert await played[request.node.name] == []
