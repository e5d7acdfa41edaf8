"""Workers in the process of a test. They end with it, also when the test fails and workflows are stuck.

And how a job is handed to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.cluster_activities import ClusterActivities
from activities.local_activities import LocalActivities
from activities.publishing import Listener, Publishing
from activities.quarantine_client import TemporalQuarantine
from everstep.backends.base import Backend
from everstep.core import names
from everstep.plugin import WORKFLOWS
from everstep.steps.step_run import QuarantineClient
from tests.support.patience import HUNG_S
from workflows import options

FAILED_S = 5.0
"""How long a failed test waits for its workers: what made it fail may keep them from ending."""


@asynccontextmanager
async def at_work(*workers: Worker) -> AsyncIterator[None]:
    begun = [asyncio.ensure_future(worker.run()) for worker in workers]
    within_s = FAILED_S
    try:
        yield
        within_s = HUNG_S
    finally:
        ended = asyncio.gather(*(worker.shutdown() for worker in workers), *begun)
        _, late = await asyncio.wait([ended], timeout=within_s)
        if late:
            # Read, or asyncio logs it as never retrieved.
            ended.add_done_callback(lambda given_up: given_up.exception())
            ended.cancel()
            if within_s == HUNG_S:
                raise AssertionError("a worker does not end")
        else:
            ended.result()


def thinker(client: Client, *activities: Callable[..., Any], **more: Any) -> Worker:
    """A worker of workflows, with local activities of the test's own or else with ours."""
    usual = {"workflows": WORKFLOWS, "activity_executor": ThreadPoolExecutor(max_workers=2)}
    return Worker(
        client,
        task_queue=names.TASK_QUEUE,
        activities=activities or LocalActivities().all(),
        workflow_runner=UnsandboxedWorkflowRunner(),
        **{**usual, **more},
    )


def actor(
    client: Client,
    backend: Backend,
    *,
    quarantine: QuarantineClient | None = None,
    listener: Listener | None = None,
    **more: Any,
) -> Worker:
    """A worker of the cluster `local`."""
    shared = quarantine or TemporalQuarantine(client=client, patience=options.QUARANTINE_PATIENCE)
    return Worker(
        client,
        task_queue=names.cluster_queue("local"),
        activities=[
            *ClusterActivities(backend=backend, quarantine=shared).all(),
            *Publishing(backend=backend, listener=listener).all(),
        ],
        **more,
    )


async def submit(
    client: Client, body: Mapping[str, Any], *, job_id: str | None = None
) -> WorkflowHandle[Any, dict[str, Any]]:
    """The job, as `everstep submit` starts it."""
    return await client.start_workflow(
        names.TRAINING_JOB,
        body,
        id=job_id or body["metadata"]["name"],
        task_queue=names.TASK_QUEUE,
        task_timeout=options.TASK_TIMEOUT,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )
