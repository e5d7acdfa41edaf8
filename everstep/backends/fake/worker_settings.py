"""What a worker's environment says of a fake cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from everstep.backends.base import Backend
from everstep.backends.settings import BackendSettings, ObserverMessages


class FakeWorkerSettings(BackendSettings):
    """Opens the fake cluster at `fake_address`; without an address a new one in this process."""

    scales_time: ClassVar[bool] = True

    fake_address: str | None = None

    async def open(
        self,
        *,
        make_home: Callable[[], Path],  # noqa: ARG002
        server: str,  # noqa: ARG002
        messages: Sequence[ObserverMessages] = (),  # noqa: ARG002  # a cluster in memory has no objects
    ) -> Backend:
        if self.fake_address is not None:
            from everstep.backends.fake.client import FakeClient

            return FakeClient(self.fake_address)
        from everstep.backends.fake.backend import FakeBackend
        from everstep.backends.fake.settings import FakeSettings

        return FakeBackend(FakeSettings())
