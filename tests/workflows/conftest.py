"""One stage for all tests of a file that ask for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.devserver import DevServer
from tests.support.scene import Scene, shared_scene


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
