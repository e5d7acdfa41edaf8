"""The scenarios once more, on real processes: in sense the same course as on the fake cluster.

Those that tests/plays says are needed here, the others with `--all-plays`. Each has a state directory, a
namespace and a worker of its own, so some are played at once: the one that waits for a limit leaves the
machine to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.plays.scenarios import COVERAGE, REAL, play_of
from tests.support.devserver import DevServer
from tests.support.playing.at_once import begun
from tests.support.playing.course import survey
from tests.support.playing.onmachine import OnMachine
from tests.support.playing.scenario import read
from tests.support.playing.sense import sense

Pair = tuple[list[str], list[str]]  # the sense of the fake course, and of the real one


async def both(path: Path, server: DevServer, home: Path) -> Pair:
    scenario = read(path)
    course = await survey(scenario)
    client = await server.connect(await server.new_namespace(path.stem.replace("_", "-")))
    played = await OnMachine(server, client, home).play(scenario, course)
    return sense(course.played), sense(played)


Played = Mapping[str, asyncio.Task[Pair]]


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest, server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Played]:
    folder = tmp_path_factory.mktemp
    async with begun(
        request, lambda path: both(path, server, folder("machine") / path.stem)
    ) as tasks:
        yield tasks


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=COVERAGE.marks(play_of(path.stem, "machine")))
        for path in (scenario.path for scenario in REAL)
    ],
)
async def test_real_processes_take_the_same_course(
    path: Path, request: pytest.FixtureRequest, played: Played
) -> None:
    expected, actual = await played[request.node.name]
    assert actual == expected
