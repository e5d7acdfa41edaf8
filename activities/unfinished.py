"""Gives back to the server at once what a killed worker had under way on this machine.

The server notices a dead worker by the heartbeat that does not come, after `options.HEARTBEAT`. Then each
workflow that the worker had in its cache waits `options.STICKY_TIMEOUT` for it. Another worker on the same
machine can do better, for it can be sure that the process is dead: each worker holds a lock as long as it
lives, and keeps a file for each activity that it carries out. A worker looks for folders whose lock is free
as it begins, and then again and again. It returns the activities in them, to be tried again without delay,
and sends their workflows to any worker. A step of a Recovery that the server gave to a worker just before it
was killed has no file yet: its worker is known by the name that the server has of it.

Where this fails, or a token is too old, nothing is lost: the server notices by itself, a little later.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import (
    AsyncActivityCancelledError,
    AsyncActivityHandle,
    Client,
    WorkflowExecutionDescription,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from everstep import locks
from everstep.core import names

LOCK = "lock"
KILLED = "WorkerKilled"
"""The type of the failure that ends the attempt of a killed worker."""
AT_ONCE = timedelta(milliseconds=1)
"""The shortest delay that the server does not take for none given."""
RECOVERIES = f"WorkflowType = '{names.RECOVERY}' AND ExecutionStatus = 'Running'"
STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
CANCEL_REQUESTED = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
AT_A_TIME = 20
CALL_TIMEOUT = timedelta(seconds=2)
LOOK_EVERY_S = 0.5
"""A look lists a folder and tries a lock for each worker of this machine."""

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """An attempt of an activity."""

    token: bytes
    workflow: str
    activity: str


class TaskFiles(Interceptor):
    """Keeps a file for each activity that runs. It never fails one: a full disk costs the file alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # the SDK's name
        return _WithFile(next, self)

    @contextmanager
    def file_of(self, task: Task) -> Iterator[None]:
        """Keep a file for the task as long as it runs."""
        self._count += 1
        path = self.folder / f"{self._count}.json"
        token = base64.b64encode(task.token).decode()
        row = {"token": token, "workflow": task.workflow, "activity": task.activity}
        with contextlib.suppress(OSError):
            _write(path, json.dumps(row))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


class _WithFile(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, files: TaskFiles) -> None:  # noqa: A002  # the SDK's name
        super().__init__(next)
        self._files = files

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  # the SDK's name
        info = activity.info()
        if info.is_local or info.workflow_id is None:
            return await super().execute_activity(input)
        with self._files.file_of(Task(info.task_token, info.workflow_id, info.activity_id)):
            return await super().execute_activity(input)


def of_server(workers: Path, server: str) -> Path:
    """The folder for workers of one server: another one would refuse what they leave."""
    return workers / hashlib.sha256(server.encode()).hexdigest()[:16]


def identity(of_client: str, folder: Path) -> str:
    """The name that the server has of the worker with this folder; other processes had the same number."""
    return f"{of_client}{_mark(folder)}"


def _mark(folder: Path) -> str:
    return f"#{folder.name[:12]}"


@contextmanager
def folder_of_worker(workers: Path) -> Iterator[Path]:
    """A folder of this worker's own, whose lock is held until the worker ends. Raises OSError."""
    for path in (workers.parent, workers):
        path.mkdir(mode=0o700, exist_ok=True)
    folder = workers / uuid.uuid4().hex
    unnamed = folder.with_name(f".{folder.name}")
    unnamed.mkdir(mode=0o700)
    handle = os.open(unnamed / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        unnamed.rename(folder)  # from here on other workers look at its lock
        yield folder
    finally:
        for path in (folder, unnamed):
            shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def left_folders(workers: Path) -> list[Path]:
    """The folders of dead workers. One whose lock cannot be read is not taken for dead."""
    left = []
    for folder in sorted(workers.iterdir()):
        with contextlib.suppress(OSError):
            if not folder.name.startswith(".") and not locks.is_held(folder / LOCK):
                left.append(folder)
    return left


def tasks_in(folder: Path) -> list[Task]:
    """What a dead worker had under way. A file that it was killed in the middle of is left out."""
    tasks = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            row = json.loads(path.read_text(encoding="utf-8"))
            token = base64.b64decode(row["token"])
            tasks.append(Task(token, row["workflow"], row["activity"]))
    return tasks


async def keep_giving_back(client: Client, workers: Path, *, every_s: float = LOOK_EVERY_S) -> None:
    """Return to the server what dead workers left, those first that were killed before this one began.

    Why that cannot be done is logged once, until it can be.
    """
    logged = ""
    while True:
        problem = await give_back(client, workers)
        if problem and problem != logged:
            LOG.warning("what a killed worker had under way waits for the server: %s", problem)
        logged = problem
        await asyncio.sleep(every_s)


async def give_back(client: Client, workers: Path) -> str:
    """Return the activities of dead workers to the server, and remove their folders.

    If that fails the answer says why: the server notices by itself, a little later.
    """
    try:
        for folder in left_folders(workers):
            with _alone(folder) as is_alone:
                if is_alone:
                    await _emptied(client, folder)
    except Exception as error:  # noqa: BLE001  # whatever it is, the worker goes on
        return repr(error)
    return ""


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether no other worker returns what is in the folder; none does inside the block."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # another one has just done it
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(handle)


async def _emptied(client: Client, folder: Path) -> None:
    tasks = tasks_in(folder)
    by_workflow = groupby(sorted(tasks, key=_workflow_of), key=_workflow_of)
    await _each([_resumed(client, workflow, list(group)) for workflow, group in by_workflow])
    await _each([_step_resumed(client, each, _mark(folder)) for each in await _recoveries(client)])
    shutil.rmtree(folder, ignore_errors=True)
    if tasks:
        LOG.info("a killed worker left %d activities: they are tried again", len(tasks))


async def _recoveries(client: Client) -> list[str]:
    """Those that run, by their IDs, as far as the server lists them yet."""
    with contextlib.suppress(RPCError):
        rows = client.list_workflows(RECOVERIES, rpc_timeout=CALL_TIMEOUT)
        return [row.id async for row in rows]
    return []


async def _step_resumed(client: Client, recovery: str, mark: str) -> None:
    """Return the step of a Recovery that the server gave to this dead worker, which may have cached it.

    If another worker is given the step meanwhile, it loses its attempt, as after a late heartbeat.
    """
    await _freed(client, recovery)
    description = await _description(client, recovery)
    if description is None:
        return
    for pending in description.raw_description.pending_activities:
        if pending.state == STARTED and pending.last_worker_identity.endswith(mark):
            await _ended(
                client.get_async_activity_handle(
                    workflow_id=recovery,
                    run_id=description.run_id,
                    activity_id=pending.activity_id,
                )
            )


def _workflow_of(task: Task) -> str:
    return task.workflow


async def _resumed(client: Client, workflow: str, tasks: Sequence[Task]) -> None:
    """Return these activities of one workflow.

    Those that were ordered to end are not tried again. To them the server itself gives what they reported
    last, as it notices the death of their worker.
    """
    description = await _description(client, workflow)
    cancelled = set() if description is None else _cancelled_in(description)
    job = workflow.partition("/")[0]  # of a Recovery
    for waiting in dict.fromkeys((workflow, job)):
        await _freed(client, waiting)
    for task in tasks:
        if task.activity not in cancelled:
            await _ended(client.get_async_activity_handle(task_token=task.token))


async def _description(client: Client, workflow: str) -> WorkflowExecutionDescription | None:
    """What the server says of a workflow; None if it says nothing."""
    with contextlib.suppress(RPCError):
        return await client.get_workflow_handle(workflow).describe(rpc_timeout=CALL_TIMEOUT)
    return None


def _cancelled_in(description: WorkflowExecutionDescription) -> set[str]:
    """The activities of a workflow that were ordered to end, by their IDs."""
    pending = description.raw_description.pending_activities
    return {one.activity_id for one in pending if one.state == CANCEL_REQUESTED}


async def _ended(attempt: AsyncActivityHandle) -> None:
    """End the attempt, so that the next one begins at once; the server may have ended it already."""
    killed = ApplicationError("its worker was killed", type=KILLED, next_retry_delay=AT_ONCE)
    with contextlib.suppress(RPCError, AsyncActivityCancelledError):
        await attempt.fail(killed, rpc_timeout=CALL_TIMEOUT)


async def _freed(client: Client, workflow: str) -> None:
    """Have a workflow wait no longer for the worker that had it in its cache."""
    request = ResetStickyTaskQueueRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow)
    )
    with contextlib.suppress(RPCError):
        await client.workflow_service.reset_sticky_task_queue(request, timeout=CALL_TIMEOUT)


async def _each(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Make the calls, some at a time."""
    slots = asyncio.Semaphore(AT_A_TIME)

    async def in_turn(call: Coroutine[Any, Any, None]) -> None:
        async with slots:
            await call

    await asyncio.gather(*map(in_turn, calls))
