"""Every case once more with real processes, with the worker killed in the middle of it.

Only here real agents and ranks of this machine meet every rule of a document. The kill falls into the last
restart: what comes before it is undisturbed. Of the cases with one restart or none, the first with each kind
of deed is played without the kill as well: what a document's rules decide in peace is shown in virtual time,
and how this machine carries it out by the scenarios. Each case has a state directory, a namespace and a
worker of its own, so some are played at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
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


def first_of_each_deed(cases: Iterable[Case]) -> Iterator[str]:
    """The IDs of the cases that have a kind of deed which no case before them has."""
    kinds: set[str] = set()
    for case in cases:
        kinds_here = {deed.what.split()[0] for deed in case.deeds}
        if kinds_here - kinds:
            yield case.id
        kinds |= kinds_here


IN_PEACE = frozenset(first_of_each_deed(c for c in REAL if not has_several_restarts(c)))


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
        for kills in ((False, True) if case.id in IN_PEACE else (True,))
    ],
)
async def test_case_with_real_processes(
    part: Part, request: pytest.FixtureRequest, played: Played
) -> None:
    assert await played[request.node.name] == []
