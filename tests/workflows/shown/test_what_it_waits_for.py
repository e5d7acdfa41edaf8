"""A job for which nothing happens says what it waits for, and can be ended all the same."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.world import PlaceOrder, PlaceState
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.scene import until_it_waits_for
from tests.support.stage import document


@pytest.mark.usefixtures("nobody_writes")
async def test_a_job_on_a_cluster_without_a_worker_says_so_and_can_be_stopped(
    client: Client,
) -> None:
    async with at_work(thinker(client)):
        job = await submit(client, document())
        status = await until_it_waits_for(job, "a worker of cluster local")
        assert status["state"] == "pending"
        await job.execute_update("stop", {"reason": "wrong cluster"})
        report = await job.result()
    assert report["status"] == "Terminated"


async def test_a_command_sent_before_the_document_is_read_waits_for_it(client: Client) -> None:
    job = await submit(client, document())
    pending = asyncio.ensure_future(job.execute_update("stop", {}))
    async with at_work(thinker(client), actor(client, FakeBackend(FakeSettings(nodes=6)))):
        stopped = await pending
        report = await job.result()
    assert stopped["accepted"]
    assert report["status"] == "Terminated"


async def test_a_command_sent_before_the_document_is_read_is_judged_by_it(
    client: Client,
) -> None:
    job = await submit(client, document())
    pending = asyncio.ensure_future(
        job.execute_update("set_budget", {"name": "no such", "limit": 1})
    )
    async with at_work(thinker(client), actor(client, FakeBackend(FakeSettings(nodes=6)))):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await pending
        await job.execute_update("stop", {})
        await job.result()
    assert "no such" in str(refused.value.cause)


class Buggy(FakeBackend):
    """A backend with a bug of ours in one verb."""

    is_repaired = False

    async def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        if not self.is_repaired:
            raise KeyError("a bug of ours")
        return await super().ensure_placed(order)


async def test_a_step_that_fails_for_a_bug_of_ours_is_visible_and_goes_on_once_it_is_mended(
    client: Client,
) -> None:
    backend = Buggy(FakeSettings(nodes=6))
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, document())
        status = await until_it_waits_for(job, "a bug of ours")
        assert status["waiting_for"].startswith("place, which failed 2 times")
        backend.is_repaired = True
        report = await job.result()
        assert report["status"] == "Completed"
        assert (await job.query("status"))["waiting_for"] is None
