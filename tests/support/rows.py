"""The runs of a job and the rows of its restarts, described one by one: the server's lists lag behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from everstep.core import names
from tests.support.patience import HUNG_S
from tests.support.stage import Handle

Run = WorkflowHandle[Any, Any]


async def runs(client: Client, job: Handle) -> list[Run]:
    """Every run of the job as it went on as new, oldest first."""
    runs: list[Run] = []
    run_id: str | None = (await job.describe()).run_id
    while run_id:
        run: Run = client.get_workflow_handle(job.id, run_id=run_id)
        runs.insert(0, run)
        begun = await anext(run.fetch_history_events(page_size=1))
        run_id = begun.workflow_execution_started_event_attributes.continued_execution_run_id
    return runs


Row = tuple[str, str | None, str | None]
"""How a workflow closed, and what it says of that in its attributes: the state and the result."""


async def row_of(client: Client, workflow: str) -> Row:
    """What the list of the Temporal UI shows of this workflow, which has closed."""
    description = await client.get_workflow_handle(workflow).describe()
    cells = {pair.key.name: pair.value for pair in description.typed_search_attributes}
    assert description.status is not None
    return description.status.name, cells.get("TrainState"), cells.get("RecoveryResult")


async def _started(client: Client, job: Handle) -> AsyncIterator[str]:
    for run in await runs(client, job):
        async for event in run.fetch_history_events():
            child = event.child_workflow_execution_started_event_attributes
            if child.workflow_type.name == names.RECOVERY:
                yield child.workflow_execution.workflow_id


async def recovery(client: Client, job: Handle, n: int = 1) -> str:
    """The ID of this restart of the job, as soon as the job has requested it."""
    suffix = f"/recovery-{n}-"
    async with asyncio.timeout(HUNG_S):
        while True:
            for run in await runs(client, job):
                async for event in run.fetch_history_events():
                    child = event.start_child_workflow_execution_initiated_event_attributes
                    if suffix in child.workflow_id:
                        return child.workflow_id
            await asyncio.sleep(0.02)


async def recoveries(client: Client, job: Handle) -> Mapping[str, WorkflowExecutionStatus]:
    """The newest state of every Recovery that this job has started."""
    statuses: dict[str, WorkflowExecutionStatus] = {}
    async for child in _started(client, job):
        row = await client.get_workflow_handle(child).describe()
        assert row.status is not None
        statuses[child] = row.status
    return statuses
