"""The scenarios once more in pods of a real control plane: in sense the same course as on the fake cluster.

Those whose faults a rank, a node or an autoscaler can cause in any cluster, and what operators do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.kubernetes import rights
from tests.kubernetes.conftest import Ground, new_namespace
from tests.kubernetes.scenarios_in_pods import InPods, can_be_played, sense_of_all
from tests.support.devserver import DevServer
from tests.support.playing.at_once import begun
from tests.support.playing.course import survey
from tests.support.playing.scenario import read

QUICK = ("node_lost",)
FOLDER = Path(__file__).parents[1] / "scenarios"
FILES = [path for path in sorted(FOLDER.glob("*.txt")) if can_be_played(read(path))]

Pair = tuple[list[str], list[str]]  # the sense of the fake course, and of the one in pods


async def both(path: Path, server: DevServer, ground: Ground, folder: Path) -> Pair:
    scenario = read(path)
    course = await survey(scenario)
    namespace = await new_namespace(ground.api, path.stem)
    kubeconfig = folder / "kubeconfig"
    async with rights.of_workers(ground.cluster, ground.api, namespace, kubeconfig) as of_workers:
        player = InPods(
            server,
            await server.connect(await server.new_namespace(namespace)),
            folder / "storage",
            ground=ground,
            namespace=namespace,
            kubeconfig=of_workers,
        )
        played = await player.play(scenario, course)
        return sense_of_all(course.played), player.sense(played)


Played = Mapping[str, asyncio.Task[Pair]]


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest,
    server: DevServer,
    ground: Ground,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Played]:
    folder = tmp_path_factory.mktemp
    async with begun(request, lambda path: both(path, server, ground, folder("scenario"))) as tasks:
        yield tasks


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.long)
        for path in FILES
    ],
)
async def test_a_job_in_pods_takes_the_same_course(
    path: Path, request: pytest.FixtureRequest, played: Played
) -> None:
    expected, found = await played[request.node.name]
    assert found == expected
