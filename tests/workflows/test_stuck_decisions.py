"""A pure function that fails again and again: the job waits visibly and is woken, never lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.cluster_activities import ClusterActivities
from activities.local_activities import LocalActivities
from activities.publishing import Publishing
from activities.quarantine_client import TemporalQuarantine
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from everstep.core.deciding import decide
from everstep.core.deciding.decision import Decision
from everstep.core.deciding.decision_input import DecisionInput
from tests.support.at_work import at_work
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import document
from worker import WORKFLOWS
from workflows import options


class Broken:
    """`decide` of a worker with a bug, until it is repaired."""

    def __init__(self) -> None:
        self.is_repaired = False

    @activity.defn(name="decide")
    async def decide(self, given: DecisionInput) -> Decision:
        if not self.is_repaired:
            raise ValueError("a bug in a rule")
        return decide.decide(given)


async def waiting_for(job: WorkflowHandle[Any, Any]) -> str | None:
    status: dict[str, Any] = await job.query("status")
    found: str | None = status.get("waiting_for")
    return found


async def test_a_failing_decision_is_visible_and_tried_again_when_somebody_speaks_up(
    server: DevServer, namespace: str
) -> None:
    client = await Client.connect(
        server.address, namespace=namespace, data_converter=DATA_CONVERTER
    )
    backend, broken, local = FakeBackend(FakeSettings(nodes=6)), Broken(), LocalActivities()
    quarantine = TemporalQuarantine(client=client, patience=options.QUARANTINE_PATIENCE)
    await backend.admin.fault("at 35s kill demo 2 exit 1")
    thinker = Worker(
        client,
        task_queue=names.TASK_QUEUE,
        workflows=WORKFLOWS,
        activities=[local.compile, local.patch, broken.decide],
        activity_executor=ThreadPoolExecutor(max_workers=2),
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    actor = Worker(
        client,
        task_queue=names.cluster_queue("local"),
        activities=[
            *ClusterActivities(backend=backend, quarantine=quarantine).all(),
            *Publishing(backend=backend).all(),
        ],
    )
    async with at_work(thinker, actor):
        job = await client.start_workflow(
            names.TRAINING_JOB, document(), id="demo", task_queue=names.TASK_QUEUE
        )
        async with asyncio.timeout(HUNG_S):
            while "a bug in a rule" not in (await waiting_for(job) or ""):
                await asyncio.sleep(0.05)
        broken.is_repaired = True
        await job.execute_update("restart", {})
        report = await job.result()
    assert report["status"] == "Completed"
    assert [r["level"] for r in report["phases"][0]["restarts"]][:1] == ["in_place"]
