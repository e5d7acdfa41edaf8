"""The commands of a workflow do not depend on whether two of its tasks arrive as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay import joined
from tests.replay.test_replay import FILES, loaded


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
async def test_tasks_without_commands_may_be_joined_with_the_next(path: Path) -> None:
    assert await joined.failures(loaded(path)) == {}
