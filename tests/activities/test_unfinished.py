"""What a killed worker had under way: the next one on the machine gives it back at once."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RespondActivityTaskCompletedRequest,
)
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities import unfinished
from tests.support.devserver import DevServer
from tests.support.workerproc import ROOT

FOREVER = timedelta(hours=1)
ACTIVITIES = "activities-of-a-killed-worker"

WORKER = """
import sys, time
from pathlib import Path
from activities import unfinished

workers, token, workflow = sys.argv[1:]
with unfinished.folder_of_worker(Path(workers)) as folder:
    with unfinished.Unfinished(folder).kept_on_disk(unfinished.Task(bytes.fromhex(token), workflow)):
        print("ready", flush=True)
        time.sleep(600)
"""
"""A worker that carries out one activity, until it is killed."""


@workflow.defn(name="OneActivity")
class OneActivity:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            "slow",
            task_queue=ACTIVITIES,
            start_to_close_timeout=FOREVER,
            retry_policy=RetryPolicy(initial_interval=FOREVER),
        )


@contextmanager
def worker(workers: Path, token: bytes, workflow_id: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(workers), token.hex(), workflow_id],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def polled(client: Client) -> PollActivityTaskQueueResponse:
    return await client.workflow_service.poll_activity_task_queue(
        PollActivityTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=ACTIVITIES), identity="test"
        )
    )


def test_only_a_dead_worker_has_left_something(tmp_path: Path) -> None:
    workers = tmp_path / "workers"
    with worker(workers, b"\0token", "demo/main/recovery-1") as process:
        assert unfinished.left_folders(workers) == []
        process.kill()
        process.wait()
        (folder,) = unfinished.left_folders(workers)
        assert unfinished.tasks_in(folder) == [unfinished.Task(b"\0token", "demo/main/recovery-1")]
    with unfinished.folder_of_worker(workers) as of_living:
        assert of_living not in unfinished.left_folders(workers)
    assert not of_living.exists()


def test_what_a_worker_was_killed_in_the_middle_of_writing_is_left_out(tmp_path: Path) -> None:
    for name, text in {
        "1": '{"token": "YQ==", "wor',
        "2": "",
        "3": "[]",
        "4": '{"token": 7}',
    }.items():
        (tmp_path / f"{name}.json").write_text(text)
    assert unfinished.tasks_in(tmp_path) == []


async def test_a_worker_begins_where_it_cannot_look_for_killed_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await unfinished.give_back(cast("Client", None), tmp_path / "gone")
    assert "waits for the server" in caplog.text


def test_a_worker_that_gets_no_lock_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without locks."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    workers = tmp_path / "workers"
    with pytest.raises(OSError, match="No locks"), unfinished.folder_of_worker(workers):
        pass
    assert list(workers.iterdir()) == []


def test_an_activity_runs_where_no_file_can_be_written(tmp_path: Path) -> None:
    without_folder = unfinished.Unfinished(tmp_path / "gone")
    with without_folder.kept_on_disk(unfinished.Task(b"token", "demo")):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
async def test_what_a_killed_worker_left_is_tried_again_at_once(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """The delay of a try and the time-out of an attempt are an hour: neither ends this."""
    client = await server.connect(namespace)
    workers = tmp_path / "workers"
    async with Worker(
        client,
        task_queue="workflows",
        workflows=[OneActivity],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        handle = await client.start_workflow("OneActivity", id="demo", task_queue="workflows")
        first = await polled(client)
        await client.get_async_activity_handle(task_token=first.task_token).heartbeat("step 7")
        with worker(workers, first.task_token, "demo") as process:
            process.kill()
            process.wait()
            await unfinished.give_back(client, workers)
            again = await polled(client)
            assert (first.attempt, again.attempt) == (1, 2)
            assert b"step 7" in again.heartbeat_details.payloads[0].data
            assert list(workers.iterdir()) == []
            await unfinished.give_back(client, workers)  # a second worker began beside the first
        await client.workflow_service.respond_activity_task_completed(
            RespondActivityTaskCompletedRequest(
                namespace=client.namespace, task_token=again.task_token
            )
        )
        await handle.result()
    history = (await handle.fetch_history()).events
    queues = [
        event.workflow_task_scheduled_event_attributes.task_queue.kind
        for event in history
        if event.HasField("workflow_task_scheduled_event_attributes")
    ]
    assert queues == [TaskQueueKind.TASK_QUEUE_KIND_NORMAL] * 2, "not that of the killed worker"
