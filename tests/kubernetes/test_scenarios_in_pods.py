"""The scenarios once more in pods of a real control plane: in sense the same course as on the fake cluster.

Those that tests/plays says are needed here, the others with `--all-plays`: ranks, nodes, volumes, observers
and operators cause their faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.kubernetes import rights
from tests.kubernetes.conftest import Ground, OwnGround, new_namespace
from tests.kubernetes.scenarios_in_pods import (
    ALONE,
    ANYWHERE,
    DONE_HERE,
    InPods,
    anywhere,
    for_pods,
    of_all,
)
from tests.plays.scenarios import COVERAGE, REAL, faults_of, play_of
from tests.support.devserver import DevServer
from tests.support.playing.at_once import begun
from tests.support.playing.course import survey
from tests.support.playing.scenario import read
from tests.support.playing.sense import sense

Pair = tuple[list[str], list[str]]  # the sense of the fake course, and of the one in pods


async def both_alone(path: Path, server: DevServer, ground: OwnGround, folder: Path) -> Pair:
    async with ground.alone() as its_own:
        return await both(path, server, its_own, folder)


async def both(path: Path, server: DevServer, ground: Ground, folder: Path) -> Pair:
    scenario = read(path)
    course = for_pods(await survey(scenario))
    namespace = await new_namespace(ground.api, path.stem)
    kubeconfig = folder / "kubeconfig"
    async with (
        rights.of_workers(ground.cluster, ground.api, namespace, kubeconfig) as of_workers,
        rights.to_read_device_info(ground.api, namespace),
    ):
        player = InPods(
            server,
            await server.connect(await server.new_namespace(namespace)),
            folder / "storage",
            ground=ground,
            namespace=namespace,
            kubeconfig=of_workers,
        )
        played = await player.play(scenario, course)
        pair = of_all(sense(course.played)), player.sense(played)
        return (anywhere(pair[0]), anywhere(pair[1])) if path.stem in ANYWHERE else pair


Played = Mapping[str, asyncio.Task[Pair]]


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest,
    server: DevServer,
    ground: Ground,
    own_ground: OwnGround,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Played]:
    async def play(path: Path) -> Pair:
        folder = tmp_path_factory.mktemp("scenario")
        if path.stem in ALONE:
            return await both_alone(path, server, own_ground, folder)
        return await both(path, server, ground, folder)

    async with begun(request, play) as tasks:
        yield tasks


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=COVERAGE.marks(play_of(path.stem, "pods")))
        for path in (scenario.path for scenario in REAL)
    ],
)
async def test_a_job_in_pods_takes_the_same_course(
    path: Path, request: pytest.FixtureRequest, played: Played
) -> None:
    expected, course = await played[request.node.name]
    assert course == expected


def test_every_fault_of_a_scenario_can_happen_in_pods() -> None:
    assert set[str]().union(*map(faults_of, REAL)) <= {*DONE_HERE}
    assert {scenario.path.stem for scenario in REAL} >= ALONE | ANYWHERE
