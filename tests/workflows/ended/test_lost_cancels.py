"""A Recovery of a job that is ended gets its cancel, and closes as cancelled.

A server that has to cancel a child while it still creates it may find none: then the child goes
on to its end, and the job waits for it. Seven of twelve went that way on a server that was short of time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities.local_activities import LocalActivities
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.deciding.decision import Decision
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.errors import StaleGeneration
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.rows import recovery
from tests.support.stage import Handle, document


class HeldDecision:
    """The local activity `decide`, which waits until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    @activity.defn(name="decide")
    def decide(self, question: DecisionInput) -> Decision:
        self.begun.set()
        assert self.released.wait(HUNG_S)
        return LocalActivities().decide(question)


async def running(client: Client, backend: FakeBackend, *, fault: str) -> Handle:
    """A job that runs until this fault, which has just been set off."""
    clock = StandingClock(backend)
    job = await clock.hold_with(backend.admin, submit(client, document()))
    await clock.pass_to(34)
    await backend.admin.fault(fault)
    await clock.let_go()
    return job


async def stop(job: Handle) -> None:
    await job.signal("stop", {})


async def cancel(job: Handle) -> None:
    await job.cancel()


@pytest.mark.parametrize("end", [stop, pytest.param(cancel, marks=pytest.mark.long)])
async def test_a_recovery_is_cancelled_once_it_exists(
    client: Client, end: Callable[[Handle], Awaitable[None]]
) -> None:
    backend, held = FakeBackend(FakeSettings(nodes=6)), HeldDecision()
    other_activities = [each for each in LocalActivities().all() if each.__name__ != "decide"]
    async with at_work(thinker(client, held.decide, *other_activities), actor(client, backend)):
        job = await running(client, backend, fault="at 35s kill demo 2 exit 1")
        assert await asyncio.to_thread(held.begun.wait, HUNG_S)
        # The job's task is under way: the server tells of this in the next one, which follows at once.
        await end(job)
        calls = await backend.admin.calls()
        held.released.set()
        try:
            report = await asyncio.wait_for(job.result(), HUNG_S)
            assert report["status"] == "Terminated"
        except WorkflowFailureError:
            assert end is cancel
        assert (await backend.admin.calls())["ensure_started"] == calls["ensure_started"]
    kinds = [EventType.Name(event.event_type) for event in (await job.fetch_history()).events]
    started = kinds.index("EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED")
    assert started < kinds.index("EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED")


class RefusesCancelledPlacement(FakeBackend):
    """A cluster that refuses a restart's placement, as too old, in the moment in which it is cancelled.

    So does any cluster in which the janitor has closed the job before the activity learns of its cancel.
    """

    def __init__(self) -> None:
        super().__init__(FakeSettings(nodes=6))
        self.is_placing = asyncio.Event()

    async def call(self, verb: str, /, **args: Any) -> Any:
        if verb != "ensure_placed" or args["order"].generation == 1:
            return await super().call(verb, **args)
        order = args["order"]
        self.is_placing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StaleGeneration(
                order.job.id, ordered=order.generation, current=order.generation + 1
            ) from None


async def test_a_step_that_is_refused_as_it_is_cancelled_leaves_a_cancelled_restart(
    client: Client,
) -> None:
    backend = RefusesCancelledPlacement()
    async with at_work(thinker(client), actor(client, backend)):
        job = await running(client, backend, fault="at 35s node-down n1")
        await asyncio.wait_for(backend.is_placing.wait(), HUNG_S)
        await job.terminate("by hand")
        restart = client.get_workflow_handle(await recovery(client, job))
        assert await _end_of(restart) == CLOSED


class RefusesPlacement(FakeBackend):
    """A cluster that refuses a restart's placement as too old, as if the janitor had closed the job."""

    async def call(self, verb: str, /, **args: Any) -> Any:
        if verb != "ensure_placed" or args["order"].generation == 1:
            return await super().call(verb, **args)
        order = args["order"]
        raise StaleGeneration(order.job.id, ordered=order.generation, current=order.generation + 1)


@pytest.mark.long
async def test_a_step_that_is_refused_before_the_cancel_comes_leaves_a_cancelled_restart(
    client: Client,
) -> None:
    """The janitor may see that a job has ended before the server cancels its Recovery.

    In the quick one the cancel comes first.
    """
    backend = RefusesPlacement(FakeSettings(nodes=6))
    async with at_work(thinker(client), actor(client, backend)):
        job = await running(client, backend, fault="at 35s node-down n1")
        restart = client.get_workflow_handle(await recovery(client, job))
        kinds: list[EventType.ValueType] = []
        async for event in restart.fetch_history_events(wait_new_event=True):
            kinds.append(event.event_type)
            if kinds[-1] == TASK_DONE and EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED in kinds:
                break  # the Recovery has read that its step is refused
        await job.terminate("by hand")
        assert await _end_of(restart) == CLOSED


async def _end_of(restart: Handle) -> dict[str, Any]:
    """What the row of a Recovery shows that ended as cancelled."""
    with pytest.raises(WorkflowFailureError) as ended:
        await asyncio.wait_for(restart.result(), HUNG_S)
    assert isinstance(ended.value.cause, CancelledError)
    cells = (await restart.describe()).typed_search_attributes
    return {pair.key.name: pair.value for pair in cells if pair.key.name in CLOSED}


TASK_DONE = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
CLOSED = {"TrainState": "stopped", "RecoveryResult": "cancelled"}
"""What the row of a cancelled Recovery shows."""
