"""Books that are not where they were: the error names the setting that says where."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from everstep.backends.local.database.store import Store
from everstep.core.errors import BackendUnavailable


async def test_a_state_directory_that_was_moved_away_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with closing(Store(home / "local.db")) as store:
        await store.changes()
        home.rename(tmp_path / "elsewhere")
        with pytest.raises(BackendUnavailable) as caught:
            await store.changes()
        assert (
            str(caught.value) == f"EVERSTEP_HOME was moved or removed: {home}/local.db is not there"
        )
        (tmp_path / "elsewhere").rename(home)
        assert await store.changes() >= 0
