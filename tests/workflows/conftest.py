"""One stage for all tests of a file that use it, and an end that does not wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.support.devserver import DevServer
from tests.support.scene import Scene, shared_scene
from workflows import options


@pytest.fixture(scope="module")
async def shared(
    server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    async with shared_scene(server, tmp_path_factory.mktemp("stage")) as scene:
        yield scene


@pytest.fixture
async def scene(shared: Scene) -> Scene:
    await shared.new_cluster()
    return shared


@pytest.fixture
def no_other_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends waits only briefly for what cannot be written or published."""
    for name in ("LAST_LINES", "LAST_WORDS"):
        monkeypatch.setattr(options, name, timedelta(seconds=0.1))
