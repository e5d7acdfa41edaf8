"""Which jobs avoid which nodes, from the memos that living jobs keep: no job is queried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from temporalio.client import Client

from everstep.cli.connection import unless_denied
from everstep.core import names

Value = dict[str, Any]


async def avoidances_known(client: Client, cluster: str) -> list[Value]:
    """As `avoidances`; none where we have no right to list workflows."""
    note = "which nodes are avoided by jobs is not known"
    return await unless_denied(avoidances(client, cluster), [], note=note)


async def avoidances(client: Client, cluster: str) -> list[Value]:
    """A row for each node that a living job of the cluster avoids: job, node, why, since, until."""
    living = f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus = 'Running'"
    rows = []
    async for job in client.list_workflows(living):
        attributes = {p.key.name: p.value for p in job.typed_search_attributes.search_attributes}
        if attributes.get("TrainCluster") == cluster:
            rows += [{"job": job.id, **row} for row in await job.memo_value("avoided", [])]
    return rows


def by_node(rows: Iterable[Value]) -> dict[str, list[Value]]:
    """The rows of each node, without its name."""
    rows_of_node: dict[str, list[Value]] = defaultdict(list)
    for row in rows:
        rows_of_node[row["node"]].append(
            {key: row[key] for key in ("job", "why", "since", "until")}
        )
    return dict(rows_of_node)
