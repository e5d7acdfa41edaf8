"""The scenarios once more, on real processes: in sense the same course as on the fake cluster.

Each has a state directory, a namespace and a worker of its own, so some are played at once: whoever
waits for a limit leaves the machine to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.converter import DATA_CONVERTER
from tests.support.course import survey
from tests.support.devserver import DevServer
from tests.support.onmachine import OnMachine
from tests.support.scenario import read
from tests.support.sense import sense

AT_ONCE = 3
QUICK = ("crash", "node_lost")
"""Played by `make test` too; each of the others takes some seconds of two cores as well."""

FOLDER = Path(__file__).parents[1] / "scenarios"
FILES = [path for path in sorted(FOLDER.glob("*.txt")) if read(path).is_real]

Pair = tuple[list[str], list[str]]  # the sense of the fake course, and of the real one


async def both(path: Path, server: DevServer, home: Path) -> Pair:
    scenario = read(path)
    course = await survey(scenario)
    namespace = await server.new_namespace(path.stem.replace("_", "-"))
    client = await Client.connect(
        server.address, namespace=namespace, data_converter=DATA_CONVERTER
    )
    played = await OnMachine(server, client, home).play(scenario, course)
    return sense(course.played), sense(played)


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest, server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[Path, asyncio.Task[Pair]]]:
    """Every scenario that is asked for, in the order of the tests, some at once."""
    stage = asyncio.Semaphore(AT_ONCE)
    home = tmp_path_factory.mktemp("machine")

    async def in_turn(path: Path) -> Pair:
        async with stage:
            return await both(path, server, home / path.stem)

    asked: list[Path] = [
        item.callspec.params["path"]  # type: ignore[misc]  # our own parameter
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    tasks = {path: asyncio.create_task(in_turn(path)) for path in asked}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.long)
        for path in FILES
    ],
)
async def test_real_processes_take_the_same_course(
    path: Path, played: dict[Path, asyncio.Task[Pair]]
) -> None:
    expected, found = await played[path]
    assert found == expected
