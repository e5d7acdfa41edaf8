"""A checkpoint of which only a heartbeat of a killed monitor was sent is kept.

By then the folder may be away and the agents gone that saw it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    RecordActivityTaskHeartbeatRequest,
)
from temporalio.client import Client

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core import names
from everstep.core.seeing.glance import SAVED
from everstep.core.world import Checkpoint
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.patience import HUNG_S
from tests.support.scene import until_state
from tests.support.stage import document
from workflows import options

BODY = document(env={"STEPS": "1000000000", "CHECKPOINT_EVERY": "100000000"})


async def heartbeat_of_a_monitor_killed_afterwards(client: Client, saved: Checkpoint) -> None:
    """Take the monitor as a worker would, send one heartbeat, and nothing more."""
    poll = PollActivityTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=names.cluster_queue("local")),
        identity="killed",
    )
    async with asyncio.timeout(HUNG_S):
        while True:
            task = await client.workflow_service.poll_activity_task_queue(
                poll, timeout=timedelta(seconds=HUNG_S)
            )
            if task.activity_type.name == "monitor":
                break
    details = await client.data_converter.encode([{SAVED: asdict(saved)}])
    beat = RecordActivityTaskHeartbeatRequest(
        namespace=client.namespace, task_token=task.task_token, identity="killed"
    )
    beat.details.payloads.extend(details)
    await client.workflow_service.record_activity_task_heartbeat(beat)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("no worker takes the monitor again", marks=pytest.mark.long),
        "a command ends the watch",
    ],
)
async def test_a_checkpoint_that_only_a_heartbeat_had_is_known_to_the_next_restart(
    client: Client, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A restart that has seen a checkpoint waits for it and does not begin without.

    The long row waits until the server gives up the monitor.
    """
    if end.startswith("no worker"):  # within this time the one that is killed has to take it
        monkeypatch.setitem(options.FIRST_STEP, "schedule_to_start_timeout", timedelta(seconds=5))
    backend = FakeBackend(FakeSettings(nodes=6))
    saved = Checkpoint(step=40, path="out/demo/ckpt/step-40")
    async with at_work(thinker(client)):
        job = await submit(client, BODY)
        async with at_work(actor(client, backend)):
            await until_state(job, "running")
        await heartbeat_of_a_monitor_killed_afterwards(client, saved)
        if end.startswith("a command"):
            await job.execute_update("restart", {})
        async with asyncio.timeout(HUNG_S):
            while (saved_step := (await job.query("state"))["saved"]) is None:
                await asyncio.sleep(0.02)
        assert (saved_step["step"], saved_step["path"]) == (saved.step, saved.path)
        await job.terminate()
