"""Cases of documents once more on a real control plane, with pods and real ranks.

All of which no fault of this machine's own nodes is a part, no device that heals by itself and no rehearsal
of long limits.

Only here what a document wants meets pods, with their restarts, their nodes and a scheduler. Those that
tests/plays says are needed are played, the others with `--all-plays`. A case with several restarts is played
without a kill: what a kill in the middle of a later restart could lose, counts and series, is in the
workflow, and `tests/cases/test_cases_on_this_machine.py` shows that it is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.documents.merge import merged
from tests.cases.case import Case
from tests.cases.results import differences
from tests.cases.table import CASES
from tests.kubernetes import rights
from tests.kubernetes.conftest import Ground, new_namespace
from tests.kubernetes.on_kubernetes import LASTING, OnKubernetes
from tests.plays import cases
from tests.plays.cases import COVERAGE, PARTS, Part, name_of, play_of
from tests.support.devserver import DevServer
from tests.support.playing.at_once import begun

PATIENT = {"limits": {"requeue_s": 30}}
"""A scheduler does not say how many places there are: each number of pods is tried for five seconds."""


def in_pods(case: Case) -> Case:
    """The case with the limits and the words of a cluster whose places are unknown."""
    if "requeue_s" not in case.overlay.get("limits", {}):
        return case
    _, minimum, rest = case.because.partition("(the minimum")
    return replace(case, overlay=merged(case.overlay, PATIENT), because=minimum + rest)


async def play(
    part: Part, server: DevServer, ground: Ground, folder: Path, *, kills_at: str = ""
) -> list[str]:
    case, kills_worker = part
    api = ground.api
    namespace = await new_namespace(api, f"case-{case.number}")
    async with (
        rights.of_workers(ground.cluster, api, namespace, folder / "kubeconfig") as kubeconfig,
        rights.to_read_device_info(api, namespace),
    ):
        player = OnKubernetes(
            server,
            await server.connect(await server.new_namespace("case")),
            case,
            home=folder / "storage",
            ground=ground,
            namespace=namespace,
            kubeconfig=kubeconfig,
        )
        player.kills_at = kills_at
        try:
            return differences(case, await player.play(kills_worker=kills_worker))
        finally:
            await player.end()


Played = Mapping[str, asyncio.Task[list[str]]]


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest,
    server: DevServer,
    ground: Ground,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Played]:
    folder = tmp_path_factory.mktemp
    async with begun(request, lambda part: play(part, server, ground, folder("case"))) as tasks:
        yield tasks


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(
            (in_pods(case), kills),
            id=name_of((case, kills)),
            marks=COVERAGE.marks(play_of((case, kills), "pods")),
        )
        for case, kills in PARTS["pods"]
    ],
)
async def test_case_in_pods(part: Part, request: pytest.FixtureRequest, played: Played) -> None:
    assert await played[request.node.name] == []


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_worker_that_is_killed_as_it_checks_a_new_place_changes_nothing(
    server: DevServer, ground: Ground, tmp_path: Path
) -> None:
    """Only documents of ModelArts have places checked. Kills at the other steps are in test_outages."""
    (case,) = [case for case in CASES if case.id == "06-node-fault"]
    assert await play((in_pods(case), True), server, ground, tmp_path, kills_at="precheck") == []


def test_the_codes_that_last_are_those_that_a_device_plugin_reports() -> None:
    assert {*cases.LASTING} == LASTING.keys()
