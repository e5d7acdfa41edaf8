"""A storm of one team's jobs delays no other team: on a server that takes turns by fairness key.

Only a server of its own has these settings. They cost a job nothing on any other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.common import WorkflowIDReusePolicy

from everstep.client.documents.documents import JobDocument
from everstep.client.home import user
from everstep.client.submitting import fairness_key, start
from everstep.core import names
from everstep.dialects import registry
from tests.support.at_work import at_work, thinker
from tests.support.devserver import ONE_PARTITION, DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import Stage, document

FAIR = {
    "matching.useNewMatcher": "true",
    "matching.enableFairness": "true",
    **ONE_PARTITION,  # with several, each takes turns by itself
}
MANY = 60
"""Jobs of the storm, handed in before the one of the other team."""


@pytest.fixture(scope="module")
async def fair_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    log = tmp_path_factory.mktemp("fair") / "temporal.log"
    async with await DevServer.start(settings=FAIR, log=log) as server:
        yield server


def body(name: str, team: str, **spec: Any) -> dict[str, Any]:
    job = document(name, **spec)
    return {**job, "metadata": {"name": name, "labels": {"team": team}}}


async def submitted(client: Client, job: dict[str, Any]) -> None:
    parsed = JobDocument(document=job, spec=registry.compile_document(job))
    reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
    await start(client, parsed, job["metadata"]["name"], reuse)


@pytest.mark.parametrize(("other", "is_early"), [("vision", True), ("nlp", False)])
async def test_a_job_of_another_team_is_begun_before_those_that_wait(
    fair_server: DevServer, other: str, *, is_early: bool
) -> None:
    """In the control it is of the same team: then it is the last one."""
    client = await fair_server.connect(await fair_server.new_namespace("fair"))
    for n in range(MANY):
        await submitted(client, body(f"storm-{n}", "nlp"))
    await submitted(client, body("other", other))
    await until_waiting(client, MANY + 1)
    limits = {"max_concurrent_workflow_tasks": 2, "max_cached_workflows": 0}
    async with at_work(thinker(client, **limits)), asyncio.timeout(HUNG_S):
        times = {name: await begun_at(client, name) for name in ("other", "storm-30", "storm-59")}
    assert (times["other"] < times["storm-30"]) is is_early
    assert (times["other"] < times["storm-59"]) is is_early


async def until_waiting(client: Client, count: int) -> None:
    """Wait until so many workflow tasks are in the queue: a job is there some time after its start."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=names.TASK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        report_stats=True,
    )
    async with asyncio.timeout(HUNG_S):
        while True:
            described = await client.workflow_service.describe_task_queue(request)
            if described.stats.approximate_backlog_count >= count:
                return
            await asyncio.sleep(0.01)


async def begun_at(client: Client, job: str) -> float:
    """When its first workflow task was begun, by the server's clock."""
    handle = client.get_workflow_handle(job)
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.HasField("workflow_task_started_event_attributes"):
            return event.event_time.ToNanoseconds() / 1e9
    raise AssertionError(f"{job} was not begun")


async def test_a_recovery_goes_before_all_else_in_the_turn_of_its_job(
    fair_server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The job keeps its key when it goes on as a new run, with its second phase."""
    namespace = await fair_server.new_namespace("fair")
    home = tmp_path_factory.mktemp("stage")
    phases = [{"name": name, "env": {"STEPS": "60"}} for name in ("one", "two")]
    async with Stage(fair_server, namespace, home) as stage:
        await stage.admin.fault("at 45s kill demo 1 exit 1")
        await submitted(stage.client, body("demo", "nlp", phases=phases))
        job = stage.client.get_workflow_handle("demo")
        report = await asyncio.wait_for(job.result(), HUNG_S)
        rows = [
            row async for row in stage.client.list_workflows(f"WorkflowType = '{names.RECOVERY}'")
        ]
        (recovery,) = [await stage.client.get_workflow_handle(row.id).describe() for row in rows]
        newest = await job.describe()
    assert report["status"] == "Completed"
    assert priority(recovery) == (1, "nlp")
    assert priority(newest) == (0, "nlp")
    assert newest.run_id != newest.raw_info.first_run_id


def priority(workflow: WorkflowExecutionDescription) -> tuple[int, str]:
    """Its priority, 0 for the usual one, and its fairness key."""
    of_server = workflow.raw_info.priority
    return of_server.priority_key, of_server.fairness_key


@pytest.mark.parametrize(
    ("labels", "namespace", "key"),
    [
        ({"team": "nlp"}, "jobs-a", "nlp"),
        ({"owner": "ada"}, "jobs-a", "jobs-a"),
        ({}, "", user()),
        ({"team": "ü" * 40}, "", "ü" * 32),
    ],
    ids=["team", "namespace", "user", "as much as a server takes"],
)
def test_the_key_is_the_team_else_the_namespace_else_the_user(
    labels: dict[str, str], namespace: str, key: str
) -> None:
    job = {**document(), "metadata": {"name": "demo", "labels": labels}}
    spec = replace(registry.compile_document(job), namespace=namespace)
    assert fairness_key(spec) == key
