"""The scenarios once more, on the real server: the same transcript, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from tests.support.playing.durable import Durable
from tests.support.playing.scenario import play, read
from tests.support.playing.transcript import transcript

FOLDER = Path(__file__).parents[1] / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))

UNWRITABLE = ("storage_never_writable", "storage_unwritable_at_launch")
"""Their storage takes no last line either."""


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
async def test_workflows_leave_the_same_transcript(
    path: Path, client: Client, request: pytest.FixtureRequest
) -> None:
    if path.stem in UNWRITABLE:
        request.getfixturevalue("nobody_writes")
    scenario = read(path)
    assert transcript(await play(scenario, Durable(client))) == scenario.golden
