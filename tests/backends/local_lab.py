"""The local cluster under test: real agents, real trainers, in a folder of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from everstep.backends.agents.news import ALL_JOBS
from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.clearing import end_all
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.faults import rehearse
from everstep.backends.local.settings import LocalSettings
from everstep.core.errors import BackendUnavailable
from everstep.protocol import wire
from tests.backends.lab import DEVICES, NODES, order_end

FENCE_S, MARGIN_S = wire.FENCE_S, 0.5
SHORT_FENCE_S = 1.0
"""For a test that waits until the time of a fence has passed. A warden reads the fence once a second, so a
busy machine may take longer for a reading, and then the ranks are ended."""
TRAINER = Path(__file__).with_name("trainer.py")


class Broken(Store):
    """Books that cannot be opened."""

    def _opened(self) -> Db:
        raise BackendUnavailable("the books are out of reach")


class LocalLab:
    """Everything the contract suite needs, with faults done to real processes."""

    steps_together = False
    pod: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, backend: LocalBackend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self._whole = backend.store
        self._broken = Broken(folder / "nowhere")
        self._is_served = True
        control, checkpoints = folder / "control", f"{self.storage}/$EVERSTEP_JOB/checkpoints"
        control.mkdir()
        script = f"CONTROL={control} CHECKPOINTS={checkpoints} exec {sys.executable} {TRAINER}"
        self.command = ("/bin/sh", "-c", script)

    @classmethod
    async def open(cls, folder: Path, **options: Any) -> LocalLab:
        usual = {"nodes": NODES, "devices": DEVICES, "fence_s": FENCE_S, "heal_s": 0.2}
        settings = LocalSettings(
            home=folder / "home", fence_margin_s=MARGIN_S, **{**usual, **options}
        )
        return cls(await LocalBackend.open(settings), folder)

    @property
    def fence_s(self) -> float:
        return self.backend.settings.fence_s + MARGIN_S

    @property
    def storage(self) -> str:
        return str(self.folder / "models")

    async def fault(self, line: str) -> None:
        words = line.split()
        if words[0] == "kill" and "exit" in words:  # nobody can do that to a process but itself
            order_end(self.folder / "control", words[1], words[2], words[4])
            return
        await rehearse(self.backend.settings.home, line)
        await self.backend.reconciler.reconcile()  # which it would do a moment later
        self.backend.news.add(ALL_JOBS)

    async def unavailable(self, on: bool) -> None:
        broken = self._broken if on else self._whole
        self.backend.store = broken

    async def leave(self) -> None:
        """No process serves the books any more."""
        if self._is_served:
            self._is_served = False
            await self.backend.close()

    async def another_worker(self) -> None:
        """The one there was is gone in the middle of everything; another serves the same books."""
        await self.leave()
        self.backend = await LocalBackend.open(self.backend.settings)
        self._whole, self._is_served = self.backend.store, True

    async def recorded(self, job: str) -> list[str]:
        logs = sorted(Path(self.storage, job).glob("*_restartable/run.log"))
        return [line.split(" ", 2)[2] for log in logs for line in log.read_text().splitlines()]

    async def effects(self) -> list[str] | None:
        return None

    async def end(self) -> None:
        """Whatever the test left behind."""
        await self.unavailable(False)
        await self.leave()
        self._broken.close()
        end_all(self.backend.settings.home)
