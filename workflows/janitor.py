"""Janitor: one sweep of a cluster, started by its schedule. Removes what dead jobs left behind."""

from __future__ import annotations

from temporalio import workflow

from everstep.core import names
from workflows import options


@workflow.defn(name=names.JANITOR)
class Janitor:
    """A row in the list for every sweep that the schedule makes."""

    @workflow.run
    async def run(self, cluster: str) -> list[str]:
        removed: list[str] = await workflow.execute_activity(
            "sweep",
            cluster,
            result_type=list[str],
            task_queue=names.cluster_queue(cluster),
            summary="remove what jobs that no longer exist left behind",
            **options.STEP,
        )
        return removed
