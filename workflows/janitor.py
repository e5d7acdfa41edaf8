"""Janitor: lives as long as its cluster, one row in the list. Removes what dead jobs left behind."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from everstep.core import names
from everstep.core.bounds import TEXT_MOST, cut
from everstep.core.escaping import in_markdown
from workflows import options, signatures
from workflows.inputs import checked_cluster, read, required
from workflows.renewing import should_renew

JOBS_SHOWN = 100
"""Removed jobs on the workflow's page."""


@workflow.defn(name=names.JANITOR)
class Janitor:
    """An activity that looks again and again, and one more each time that something was removed."""

    @workflow.run
    async def run(self, *raw: Any) -> None:
        cluster = checked_cluster(required(read(raw, str)))
        while not should_renew():
            removed = await workflow.execute_activity(
                signatures.keep_swept,
                cluster,
                task_queue=names.cluster_queue(cluster),
                summary="look for what jobs that no longer exist left behind",
                **options.STEP,
            )
            jobs = cut(", ".join(removed[:JOBS_SHOWN]), TEXT_MOST)
            workflow.set_current_details(f"removed last: {in_markdown(jobs)}")
        workflow.continue_as_new(cluster, initial_versioning_behavior=options.UPGRADED)
