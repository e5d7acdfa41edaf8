"""Workflows of ours that are started by hand, with an input that is none: each ends with one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from everstep.core import names
from everstep.plugin import WORKFLOWS
from tests.support.at_work import at_work, thinker
from tests.support.patience import HUNG_S
from tests.support.scene import unreadable

TYPES = (names.RECOVERY, names.NODE_QUARANTINE, names.JANITOR, names.FLEET_TOTALS)
Row = tuple[list[Any], str]

NONSENSE: Mapping[str, Row] = {
    "a list": ([[1]], "input: "),
    "null": ([None], "input: "),
    "two inputs": ([{}, {}], "input: exactly one argument is needed, not 2"),
    "bytes": ([b"{}"], "input: "),
    "no JSON": ([unreadable()], "input: not readable JSON"),
    "another encoding": ([unreadable(encoding=b"binary/other")], "input: not readable JSON"),
}
"""What was given, and how the sentence begins."""
LONG_NAME = "x" * 5_000
NO_CLUSTERS: Mapping[str, list[Any]] = {
    names.NODE_QUARANTINE: [{"cluster": LONG_NAME}, {"cluster": ""}, {"cluster": "a\0b"}],
    names.JANITOR: [LONG_NAME, " ", "a\nb"],
}
"""Names after which a server has no task queue."""
FIELDS: Mapping[str, Row] = {
    names.RECOVERY: ([{"title": 5}], "input.key: Field required"),
    names.NODE_QUARANTINE: ([{"cluster": 7}], "input.cluster: Input should be a valid string"),
    names.FLEET_TOTALS: ([{"jobs": 7}], "input.jobs: "),
}


async def refusal(client: Client, kind: str, arguments: list[Any]) -> ApplicationError:
    handle = await client.start_workflow(
        kind, args=arguments, id=f"{kind}-by-hand", task_queue=names.TASK_QUEUE
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), HUNG_S)
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


@pytest.mark.parametrize("kind", TYPES)
async def test_an_input_that_is_none_fails_the_workflow_in_one_line(
    client: Client, kind: str
) -> None:
    rows = [*NONSENSE.values()] + ([FIELDS[kind]] if kind in FIELDS else [])
    async with at_work(thinker(client)):
        for arguments, sentence in rows:
            error = await refusal(client, kind, arguments)
            assert (error.type, "\n" in error.message) == ("InvalidSpec", False)
            assert error.message.startswith(sentence), (arguments, error.message)


@pytest.mark.parametrize("kind", NO_CLUSTERS)
async def test_a_cluster_without_a_name_fails_the_workflow_in_one_line(
    client: Client, kind: str
) -> None:
    async with at_work(thinker(client)):
        for argument in NO_CLUSTERS[kind]:
            error = await refusal(client, kind, [argument])
            assert (error.type, "is no name of a cluster" in error.message) == ("InvalidSpec", True)


@workflow.defn(name="Parent")
class Parent:
    """Starts a Recovery as a job does, with a plan of a version that the worker does not have."""

    @workflow.run
    async def run(self) -> None:
        plan = {"plan": "newer"}
        await workflow.execute_child_workflow(names.RECOVERY, plan, id="its-recovery")


async def test_a_plan_of_another_version_waits_for_a_worker_that_can_read_it(
    client: Client,
) -> None:
    """It fails the task alone: as a refusal it would end a job that has nothing wrong with it."""
    async with at_work(thinker(client, workflows=[*WORKFLOWS, Parent])):
        parent = await client.start_workflow("Parent", id="parent", task_queue=names.TASK_QUEUE)
        recovery = client.get_workflow_handle("its-recovery")
        async with asyncio.timeout(HUNG_S):
            await parent.describe()
            while EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in await events(client):
                await asyncio.sleep(0.02)
        assert (await recovery.describe()).status is WorkflowExecutionStatus.RUNNING
        await parent.terminate()


async def events(client: Client) -> list[int]:
    """The types of the events of the Recovery; none before it exists."""
    rows = [row async for row in client.list_workflows("WorkflowId = 'its-recovery'")]
    if not rows:
        return []
    history = await client.get_workflow_handle("its-recovery").fetch_history()
    return [event.event_type for event in history.events]
