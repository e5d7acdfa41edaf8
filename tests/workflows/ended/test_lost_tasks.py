"""A workflow task whose worker is killed costs seconds, however often that happens in a row.

A server gives each try of one more time, from the fourth on by powers of two: a `stop` waited for 90 s behind
seven kills. Only a server shows that.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import Client

from everstep.core import names
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from workflows import options

KILLS = 5
GROWN_S = 10.0
"""Less than the sixth try waits where the time grows: the fifth is given 13 s, less what is by chance."""


async def next_try(client: Client, queue: str) -> int:
    """Take a workflow task as a worker would that is killed before it can answer; which try that is."""
    while True:
        request = PollWorkflowTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), identity="killed"
        )
        polled = await client.workflow_service.poll_workflow_task_queue(
            request, timeout=timedelta(seconds=HUNG_S)
        )
        if polled.task_token:
            return polled.attempt


@pytest.mark.long
async def test_a_task_whose_workers_were_killed_comes_back_as_soon_as_the_first_time(
    server: DevServer, namespace: str
) -> None:
    client = await server.connect(namespace)
    job = await client.start_workflow(
        names.TRAINING_JOB, {}, id="demo", task_queue="nobody", task_timeout=options.TASK_TIMEOUT
    )
    try:
        async with asyncio.timeout(HUNG_S):
            assert [await next_try(client, "nobody") for _ in range(KILLS)] == [
                *range(1, KILLS + 1)
            ]
            began = time.monotonic()
            assert await next_try(client, "nobody") == KILLS + 1
    finally:
        await job.terminate()
    assert time.monotonic() - began < GROWN_S
