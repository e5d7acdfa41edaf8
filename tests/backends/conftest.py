"""The backends under test, each as a `Lab`; and a fake cluster in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from everstep.backends.base import Backend
from everstep.backends.fake.backend import Admin, FakeBackend
from everstep.backends.fake.client import FakeClient
from everstep.backends.fake.settings import FakeSettings
from tests.backends.lab import DEVICES, NODES, Lab, Run
from tests.backends.local_lab import FENCE_S, SHORT_FENCE_S, LocalLab
from tests.backends.long_on_local import is_long
from tests.support.child import Child
from tests.support.patience import HUNG_S

READY = "everstep fake cluster ready "


HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(HERE):
            spec = getattr(item, "callspec", None)  # of parametrized tests only
            file = item.path.relative_to(HERE).as_posix()
            if (
                spec is not None
                and spec.params.get("lab") == "local"
                and is_long(file, item.originalname)
            ):
                item.add_marker(pytest.mark.long)


class FakeLab:
    """The fake cluster, here or behind a socket: `admin` reaches both."""

    command: tuple[str, ...] = ("python", "train.py")
    storage = "/models"
    fence_s = 35.0
    steps_together = True
    pod: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, backend: FakeBackend | FakeClient) -> None:
        self.backend: Backend = backend
        self.admin = backend.admin

    async def fault(self, line: str) -> None:
        await self.admin.fault(line)

    async def unavailable(self, on: bool) -> None:
        await self.admin.unavailable(on)

    async def recorded(self, job: str) -> list[str]:
        return list(await self.admin.recorded(job))

    async def effects(self) -> list[str] | None:
        return [effect.what for effect in await self.admin.effects()]


@dataclass
class FakeRun(Run):
    """A job on a fake cluster."""

    @property
    def admin(self) -> Admin:
        assert isinstance(self.lab, FakeLab)
        return self.lab.admin

    async def fault(self, *lines: str) -> None:
        for line in lines:
            await self.admin.fault(line)


@pytest.fixture(scope="session")
async def fake_address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A fake cluster in a process of its own. One for all tests: `admin.reset` makes it new."""
    log = tmp_path_factory.mktemp("fake") / "cluster.log"
    server = Child([sys.executable, "-m", "everstep.backends.fake.server"], name="fake", log=log)

    async def is_ready() -> bool:
        return READY in server.output()

    await server.until(is_ready, within_s=HUNG_S)
    yield server.output().split(READY)[1].split()[0]
    server.kill()


@pytest.fixture
async def fake_client(fake_address: str) -> AsyncIterator[FakeClient]:
    client = FakeClient(fake_address)
    await client.admin.reset(nodes=NODES, devices=DEVICES)
    yield client
    await client.close()


@pytest.fixture
def fake() -> FakeBackend:
    """A fake cluster in this process."""
    return FakeBackend(FakeSettings(nodes=NODES, devices=DEVICES))


@pytest.fixture
def fake_lab(fake: FakeBackend) -> FakeLab:
    return FakeLab(fake)


@pytest.fixture
async def local_lab(
    request: pytest.FixtureRequest, tmp_path: Path, pyz: Path
) -> AsyncIterator[LocalLab]:
    """A local cluster of real processes, all of them gone afterwards."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "agent.pyz").hardlink_to(pyz)  # which each cluster would build for itself
    is_short = request.node.get_closest_marker("short_fence") is not None
    lab = await LocalLab.open(tmp_path, fence_s=SHORT_FENCE_S if is_short else FENCE_S)
    yield lab
    await lab.end()


@pytest.fixture(params=["fake", "fake-process", "local"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Every backend that has to keep the contract."""
    if request.param == "local":
        local: Lab = request.getfixturevalue("local_lab")
        return local
    name = {"fake": "fake", "fake-process": "fake_client"}[request.param]
    return FakeLab(request.getfixturevalue(name))


@pytest.fixture
def job(lab: Lab) -> Run:
    """A job of two slots with one device each, on five nodes: with real processes four cost twice as much."""
    return Run(lab, slots=(0, 1))


@pytest.fixture
def demo(fake_lab: FakeLab) -> FakeRun:
    """A job of four slots on the fake cluster in this process."""
    return FakeRun(fake_lab)
