"""Running records and events of every scenario agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.playing.scenario import play, read
from tests.support.playing.simulated import Simulated
from tests.support.story import tells_one_story

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
async def test_running_records_and_events_tell_one_story(path: Path) -> None:
    driver = Simulated()
    await play(read(path), driver)
    tells_one_story(driver.simulation.state, driver.simulation.chronicle)
