"""What a killed worker had under way: another one on the machine gives it back at once."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueKind
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RespondActivityTaskCompletedRequest,
)
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities import unfinished
from everstep.client.connection import server_name
from everstep.client.home import WORKERS
from everstep.core import names
from everstep.plugin import data_converter, opened
from everstep.worker_settings import WorkerSettings
from tests.support.devserver import DevServer
from tests.support.workerproc import ROOT

FOREVER = timedelta(hours=1)
NORMAL = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
ACTIVITIES = "activities-of-a-killed-worker"

WORKER = """
import sys, time
from pathlib import Path
from activities import unfinished

workers, token, workflow, activity = sys.argv[1:]
task = unfinished.Task(bytes.fromhex(token), workflow, activity)
with unfinished.folder_of_worker(Path(workers)) as folder:
    with unfinished.TaskFiles(folder).file_of(task):
        print("ready", flush=True)
        time.sleep(600)
"""
"""A worker that carries out one activity, until it is killed."""


async def slow() -> None:
    await workflow.execute_activity(
        "slow",
        task_queue=ACTIVITIES,
        start_to_close_timeout=FOREVER,
        retry_policy=RetryPolicy(initial_interval=FOREVER),
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


@workflow.defn(name="OneActivity")
class OneActivity:
    @workflow.run
    async def run(self) -> None:
        await slow()


@workflow.defn(name=names.RECOVERY)
class OneStep:
    @workflow.run
    async def run(self) -> None:
        await slow()


@asynccontextmanager
async def looking(client: Client, workers: Path) -> AsyncIterator[None]:
    """A worker that lives looks for killed ones."""
    task = asyncio.create_task(unfinished.keep_giving_back(client, workers, every_s=0.01))
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def worker(workers: Path, task: unfinished.Task) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, workers, task.token.hex(), task.workflow, task.activity],
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


def left_by_killed_worker(workers: Path, task: unfinished.Task) -> Path:
    """The folder of a worker that carried the task out."""
    with worker(workers, task):
        pass
    (folder,) = unfinished.left_folders(workers)
    return folder


@pytest.fixture
async def client(server: DevServer, namespace: str) -> AsyncIterator[Client]:
    """Of a server whose workflows have a worker, and their activities none."""
    client = await server.connect(namespace)
    async with Worker(
        client,
        task_queue="workflows",
        workflows=[OneActivity, OneStep],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield client


async def started(client: Client) -> tuple[WorkflowHandle[Any, Any], unfinished.Task]:
    """A workflow, and the attempt of its activity that no worker carries out."""
    handle = await client.start_workflow("OneActivity", id="demo", task_queue="workflows")
    polled_task = await polled(client)
    task = unfinished.Task(polled_task.task_token, "demo", polled_task.activity_id)
    await client.get_async_activity_handle(task_token=task.token).heartbeat("step 7")
    return handle, task


async def polled(client: Client, identity: str = "test") -> PollActivityTaskQueueResponse:
    return await client.workflow_service.poll_activity_task_queue(
        PollActivityTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=ACTIVITIES), identity=identity
        )
    )


async def completed(client: Client, task: PollActivityTaskQueueResponse) -> None:
    await client.workflow_service.respond_activity_task_completed(
        RespondActivityTaskCompletedRequest(namespace=client.namespace, task_token=task.task_token)
    )


async def queues(handle: WorkflowHandle[Any, Any]) -> list[int]:
    """The kinds of the queues that its workflow tasks were put into."""
    return [
        event.workflow_task_scheduled_event_attributes.task_queue.kind
        for event in (await handle.fetch_history()).events
        if event.HasField("workflow_task_scheduled_event_attributes")
    ]


def test_only_a_dead_worker_has_left_something(tmp_path: Path) -> None:
    workers = tmp_path / "workers"
    task = unfinished.Task(b"\0token", "demo/main/recovery-1", "7")
    with worker(workers, task) as process:
        assert unfinished.left_folders(workers) == []
        process.kill()
        process.wait()
        (folder,) = unfinished.left_folders(workers)
        assert unfinished.tasks_in(folder) == [task]
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


async def test_where_killed_ones_cannot_be_looked_for_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    has_looked_often = asyncio.Event()
    original = unfinished.give_back

    async def counted(client: Client, workers: Path) -> str:
        nonlocal looks
        looks += 1
        if looks > 3:
            has_looked_often.set()
        return await original(client, workers)

    monkeypatch.setattr(unfinished, "give_back", counted)
    async with looking(cast("Client", None), tmp_path / "gone"):
        await has_looked_often.wait()
    assert caplog.text.count("waits for the server") == 1


async def test_one_worker_alone_returns_what_a_killed_one_left(tmp_path: Path) -> None:
    """The one that holds the lock meanwhile; if it is killed too, its lock ends and another one does it."""
    workers = tmp_path / "workers"
    folder = left_by_killed_worker(workers, unfinished.Task(b"token", "demo", "7"))
    with (folder / unfinished.LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await unfinished.give_back(cast("Client", None), workers) == ""
        assert folder.is_dir()


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
    files = unfinished.TaskFiles(tmp_path / "gone")
    with files.file_of(unfinished.Task(b"token", "demo", "7")):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
async def test_what_a_killed_worker_left_is_tried_again_at_once(
    client: Client, tmp_path: Path
) -> None:
    """The delay of a try and the time-out of an attempt are an hour: neither ends this."""
    workers = tmp_path / "workers"
    handle, task = await started(client)
    shutil.copytree(left_by_killed_worker(workers, task), tmp_path / "copy")
    await unfinished.give_back(client, workers)
    again = await polled(client)
    assert again.attempt == 2
    assert b"step 7" in again.heartbeat_details.payloads[0].data
    assert list(workers.iterdir()) == []

    # As if the worker that gave it back had been killed before it removed the folder.
    (tmp_path / "copy").rename(workers / "copy")
    await unfinished.give_back(client, workers)
    assert list(workers.iterdir()) == []
    await completed(client, again)
    await handle.result()
    assert await queues(handle) == [NORMAL] * 2, "not that of the killed worker"


@pytest.mark.timeout(120)
async def test_a_worker_that_lives_returns_what_another_one_leaves_as_it_is_killed(
    client: Client, tmp_path: Path
) -> None:
    """All time-outs are an hour, and no worker begins."""
    workers = tmp_path / "workers"
    _, task = await started(client)
    with worker(workers, task) as process:
        async with looking(client, workers):
            process.kill()
            again = await polled(client)
    assert (again.attempt, again.activity_id) == (2, task.activity)


@pytest.mark.timeout(120)
async def test_a_step_without_a_file_is_returned_by_the_identity_of_its_worker(
    client: Client, tmp_path: Path
) -> None:
    """The worker was killed between the server's answer and the file. A step of another worker goes on."""
    workers = tmp_path / "workers"
    with worker(workers, unfinished.Task(b"token", "gone", "7")):
        (folder,) = workers.iterdir()
        identities = [unfinished.identity("7@host", folder), "8@host"]
        steps, tasks = [], []
        for identity in identities:
            job = f"job-of-{identity}"
            steps.append(
                await client.start_workflow(names.RECOVERY, id=job, task_queue="workflows")
            )
            tasks.append(await polled(client, identity))
            assert tasks[-1].workflow_execution.workflow_id == job
        while (await client.count_workflows(unfinished.RECOVERIES)).count != len(steps):
            await asyncio.sleep(0.01)
    await unfinished.give_back(client, workers)
    again = await polled(client)
    assert (again.attempt, again.workflow_execution.workflow_id) == (2, steps[0].id)
    await completed(client, tasks[1])
    await steps[1].result()
    assert await queues(steps[1]) == [NORMAL] * 2, "the killed worker may have had it in its cache"


@pytest.mark.timeout(120)
async def test_each_worker_looks_for_killed_ones_of_its_server_as_long_as_it_runs(
    client: Client,
    server: DevServer,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What those of another server left stays for a worker of that one."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    of_others = unfinished.of_server(tmp_path / WORKERS, "another.example:7233/default")
    other = left_by_killed_worker(of_others, unfinished.Task(b"token", "demo", "7"))
    _, task = await started(client)
    of_worker = await Client.connect(
        server.address, namespace=namespace, data_converter=data_converter()
    )
    async with opened(of_worker, WorkerSettings(janitor=False)):
        workers = unfinished.of_server(tmp_path / WORKERS, server_name(of_worker))
        with worker(workers, task) as process:
            process.kill()
            assert (await polled(client)).attempt == 2
    assert other.is_dir()


@pytest.mark.timeout(120)
async def test_an_activity_that_was_ordered_to_end_is_left_to_the_server(
    client: Client, tmp_path: Path
) -> None:
    """It is not tried again, and its failure by a missing heartbeat alone has what it reported last."""
    workers = tmp_path / "workers"
    handle, task = await started(client)
    await handle.cancel()
    cancelled = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED

    async def pending() -> Sequence[Any]:
        return (await handle.describe()).raw_description.pending_activities

    while (await pending())[0].state != cancelled:
        await asyncio.sleep(0.01)
    left_by_killed_worker(workers, task)
    await unfinished.give_back(client, workers)
    (activity,) = await pending()
    assert (activity.state, activity.attempt) == (cancelled, 1)
    assert list(workers.iterdir()) == []
    await handle.terminate()
