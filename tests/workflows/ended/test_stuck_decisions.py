"""A pure function that fails again and again: the job waits visibly and is woken, never lost.

Ten seconds after these, the test run may print panics, "receive half not dropped": the SDK forgets the
timer of each earlier try of a local activity, and the worker that it reports to has ended. They say no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio import activity
from temporalio.client import Client

from activities.local_activities import LocalActivities
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.deciding import decide
from everstep.core.deciding.decision import Decision
from everstep.core.deciding.decision_input import DecisionInput
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.patience import HUNG_S
from tests.support.scene import until_it_waits_for, until_state
from tests.support.stage import Handle, document


class Broken:
    """`decide` of a worker with a bug, until it is repaired."""

    def __init__(self) -> None:
        self.is_repaired = False

    @activity.defn(name="decide")
    async def decide(self, inputs: DecisionInput) -> Decision:
        if not self.is_repaired:
            raise ValueError("a bug in a rule")
        return decide.decide(inputs)


async def test_a_failing_decision_is_visible_and_tried_again_when_somebody_speaks_up(
    client: Client,
) -> None:
    backend, broken, local = FakeBackend(FakeSettings(nodes=6)), Broken(), LocalActivities()
    await backend.admin.fault("at 35s kill demo 2 exit 1")
    thinks = thinker(client, local.compile, local.patch, broken.decide)
    async with at_work(thinks, actor(client, backend)):
        job = await submit(client, document())
        await until_it_waits_for(job, "a bug in a rule")
        broken.is_repaired = True
        await job.execute_update("restart", {})
        report = await job.result()
    assert report["status"] == "Completed"
    assert [r["level"] for r in report["phases"][0]["restarts"]][:1] == ["in_place"]


async def test_a_job_whose_decision_fails_again_and_again_can_be_stopped(client: Client) -> None:
    async with stuck(client) as job:
        await job.execute_update("stop", {"reason": "enough of it"})
        report = await asyncio.wait_for(job.result(), HUNG_S)
        assert (report["status"], report["reason"]) == ("Terminated", "enough of it")


@pytest.mark.long
async def test_a_job_whose_decision_fails_again_and_again_can_be_paused(client: Client) -> None:
    """The quick ones stop such a job, and go on once the rule is mended."""
    async with stuck(client) as job:
        await job.execute_update("pause", {})
        await asyncio.wait_for(until_state(job, "paused"), HUNG_S)
        await job.execute_update("stop", {})
        assert (await job.result())["status"] == "Terminated"


@asynccontextmanager
async def stuck(client: Client) -> AsyncIterator[Handle]:
    """A job whose rules raise."""
    backend, broken, local = FakeBackend(FakeSettings(nodes=6)), Broken(), LocalActivities()
    await backend.admin.fault("at 35s kill demo 2 exit 1")
    thinks = thinker(client, local.compile, local.patch, broken.decide)
    async with at_work(thinks, actor(client, backend)):
        job = await submit(client, document())
        await until_it_waits_for(job, "a bug in a rule")
        yield job
