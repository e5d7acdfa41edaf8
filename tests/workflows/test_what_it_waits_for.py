"""A job for which nothing happens says what it waits for, and can be ended all the same."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.cluster_activities import ClusterActivities
from activities.local_activities import LocalActivities
from activities.publishing import Publishing
from activities.quarantine_client import TemporalQuarantine
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from everstep.core.world import PlaceOrder, PlaceState
from tests.support.at_work import at_work
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import Handle, document
from worker import WORKFLOWS
from workflows import options


@pytest.fixture
async def connected(server: DevServer, namespace: str) -> Client:
    return await Client.connect(server.address, namespace=namespace, data_converter=DATA_CONVERTER)


def thinker(client: Client) -> Worker:
    local = LocalActivities()
    return Worker(
        client,
        task_queue=names.TASK_QUEUE,
        workflows=WORKFLOWS,
        activities=local.all(),
        activity_executor=ThreadPoolExecutor(max_workers=2),
        workflow_runner=UnsandboxedWorkflowRunner(),
    )


def actor(client: Client, backend: FakeBackend) -> Worker:
    quarantine = TemporalQuarantine(client=client, patience=options.QUARANTINE_PATIENCE)
    return Worker(
        client,
        task_queue=names.cluster_queue("local"),
        activities=[
            *ClusterActivities(backend=backend, quarantine=quarantine).all(),
            *Publishing(backend=backend).all(),
        ],
    )


async def submitted(client: Client) -> Handle:
    return await client.start_workflow(
        names.TRAINING_JOB, document(), id="demo", task_queue=names.TASK_QUEUE
    )


async def until_it_waits_for(job: Handle, what: str) -> dict[str, Any]:
    async with asyncio.timeout(HUNG_S):
        while True:
            status: dict[str, Any] = await job.query("status")
            if what in (status.get("waiting_for") or ""):
                return status
            await asyncio.sleep(0.02)


async def test_a_job_on_a_cluster_without_a_worker_says_so_and_can_be_stopped(
    connected: Client,
) -> None:
    async with at_work(thinker(connected)):
        job = await submitted(connected)
        status = await until_it_waits_for(job, "a worker of cluster local")
        assert status["state"] == "pending"
        await job.execute_update("stop", {"reason": "wrong cluster"})
        report = await job.result()
    assert report["status"] == "Terminated"


async def test_a_command_sent_before_the_document_is_read_waits_for_it(connected: Client) -> None:
    job = await submitted(connected)
    pending = asyncio.ensure_future(job.execute_update("stop", {}))
    async with at_work(thinker(connected), actor(connected, FakeBackend(FakeSettings(nodes=6)))):
        stopped = await pending
        report = await job.result()
    assert stopped["accepted"]
    assert report["status"] == "Terminated"


async def test_a_command_sent_before_the_document_is_read_is_judged_by_it(
    connected: Client,
) -> None:
    job = await submitted(connected)
    pending = asyncio.ensure_future(
        job.execute_update("set_budget", {"name": "no such", "limit": 1})
    )
    async with at_work(thinker(connected), actor(connected, FakeBackend(FakeSettings(nodes=6)))):
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
    connected: Client,
) -> None:
    backend = Buggy(FakeSettings(nodes=6))
    async with at_work(thinker(connected), actor(connected, backend)):
        job = await submitted(connected)
        status = await until_it_waits_for(job, "a bug of ours")
        assert status["waiting_for"].startswith("place, which failed 2 times")
        backend.is_repaired = True
        report = await job.result()
        assert report["status"] == "Completed"
        assert (await job.query("status"))["waiting_for"] is None
