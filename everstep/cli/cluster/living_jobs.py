"""What living jobs leave with the server: which nodes they avoid, how much they use their devices.

No job is queried: the first is in their memos, the second in the heartbeats of their watches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Any

from temporalio.client import Client, WorkflowExecution

from everstep.client.connection import of_each, unless_denied
from everstep.client.jobs.found_job import look_up
from everstep.client.jobs.status import glance
from everstep.core import names

Value = dict[str, Any]


async def living_jobs(client: Client, cluster: str) -> AsyncIterator[WorkflowExecution]:
    """The jobs of the cluster that have not ended."""
    living = f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus = 'Running'"
    async for job in client.list_workflows(living):
        attributes = {p.key.name: p.value for p in job.typed_search_attributes.search_attributes}
        if attributes.get("TrainCluster") == cluster:
            yield job


async def avoidances_known(client: Client, cluster: str) -> list[Value]:
    """As `avoidances`; none where we have no right to list workflows."""
    note = "which nodes are avoided by jobs is not known"
    return await unless_denied(avoidances(client, cluster), [], note=note)


async def avoidances(client: Client, cluster: str) -> list[Value]:
    """A row for each node that a living job of the cluster avoids: job, node, why, since, until."""
    return [
        {"job": job.id, **row}
        async for job in living_jobs(client, cluster)
        for row in await job.memo_value("avoided", [])
    ]


async def device_use_known(client: Client, cluster: str) -> list[Value]:
    """A row for each slot whose devices show their use: job, node, slot, devices.

    None where we have no right to list workflows.
    """
    note = "the use of devices is not known"
    return await unless_denied(_device_use(client, cluster), [], note=note)


async def _device_use(client: Client, cluster: str) -> list[Value]:
    ids = [job.id async for job in living_jobs(client, cluster)]

    async def rows_of(job_id: str) -> list[Value]:
        job = await look_up(client, job_id)
        rows = None if job is None else (await glance(job)).get("device_use")
        return [{"job": job_id, **row} for row in rows or ()]

    return [row for rows in await of_each(ids, rows_of) for row in rows]


def by_node(rows: Iterable[Value]) -> dict[str, list[Value]]:
    """The rows of each node."""
    rows_of_node: dict[str, list[Value]] = defaultdict(list)
    for row in rows:
        rows_of_node[row["node"]].append(row)
    return dict(rows_of_node)
