"""Heartbeats of an activity. They distinguish a dead worker, a slow call and a stuck one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

from activities.failures import translated

EVERY_S = 0.7
"""Well within the heartbeat time-out; this is also how soon a cancellation arrives."""

STUCK_S = 30.0
"""A call that has not returned for this long is given up: heartbeats cease, and the server retries it."""


class Heartbeat:
    """Beats by itself between two steps forward, for as long as one call may take."""

    def __init__(self) -> None:
        self._forward_at = time.monotonic()
        # Those of an earlier try, which a heartbeat without any would erase.
        self._details: tuple[object, ...] = tuple(activity.info().heartbeat_details)

    def beat(self, *details: object) -> None:
        """A step forward: something came back from the cluster. The next sign of life shows it."""
        self._forward_at, self._details = time.monotonic(), details

    def send(self, *details: object) -> None:
        """A step forward that the server keeps even if the activity fails right after it."""
        self.beat(*details)
        activity.heartbeat(*details)

    @property
    def details(self) -> tuple[object, ...]:
        """What came back last."""
        return self._details

    async def keep(self) -> None:
        while time.monotonic() - self._forward_at < STUCK_S:
            activity.heartbeat(*self._details)
            await asyncio.sleep(EVERY_S)


@asynccontextmanager
async def heartbeating() -> AsyncIterator[Heartbeat]:
    """The activity shows that it lives while it is inside; our errors leave as Temporal's."""
    heartbeat = Heartbeat()
    keeping = asyncio.create_task(heartbeat.keep())
    try:
        with translated():
            yield heartbeat
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
