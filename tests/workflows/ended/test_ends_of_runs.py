"""The command that ends a run is the last of its task, whatever else ends in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
)

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.patience import HUNG_S
from tests.support.stage import document
from workflows import options


class Together(Interceptor):
    """Keeps the answers of the first activity of each of these names until they are let go together."""

    def __init__(self, *held: str) -> None:
        self.held = {name: asyncio.Event() for name in held}
        self.let_go = asyncio.Event()

    def intercept_activity(self, inner: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Keeping(inner, self)

    async def are_held(self) -> None:
        await asyncio.gather(*(event.wait() for event in self.held.values()))


class _Keeping(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, together: Together) -> None:
        super().__init__(inner)
        self._together = together

    async def execute_activity(self, inputs: ExecuteActivityInput) -> Any:
        result = await super().execute_activity(inputs)
        name, held = activity.info().activity_type, self._together.held
        if name in held and not held[name].is_set():
            held[name].set()
            while not self._together.let_go.is_set():
                activity.heartbeat()
                await asyncio.sleep(0.05)
        return result


class Late:
    """A listener that accepts nothing the first time: its notices stay due."""

    def __init__(self) -> None:
        self._was_called = False

    async def take(self, _message: Mapping[str, str]) -> bool:
        was_called, self._was_called = self._was_called, True
        return was_called


def stateless(client: Client) -> Worker:
    return thinker(
        client,
        sticky_queue_schedule_to_start_timeout=options.STICKY_TIMEOUT,
        graceful_shutdown_timeout=timedelta(0),
    )


async def until_answered(job: WorkflowHandle[Any, Any]) -> None:
    """Until the server has the answer of every activity of the job."""
    while (await job.describe()).raw_description.pending_activities:
        await asyncio.sleep(0.05)


async def test_a_phase_that_ends_as_its_lines_are_written_is_followed_by_the_next(
    client: Client,
) -> None:
    backend, together = FakeBackend(FakeSettings(nodes=6)), Together("monitor", "publish")
    acts = actor(client, backend, listener=Late(), interceptors=[together])
    async with asyncio.timeout(HUNG_S), at_work(acts):
        async with at_work(stateless(client)):
            job = await submit(client, document(phases=[{"name": "one"}, {"name": "two"}]))
            await together.are_held()
        together.let_go.set()  # nobody hears of the one before the other
        await until_answered(job)
        async with at_work(stateless(client)):
            report = await job.result()
    assert [phase["name"] for phase in report["phases"]] == ["one", "two"]
