"""Queries and updates of a workflow: the worker's answer, or a sentence why there is none.

Where no answer comes in time, the server shows the reason: a wrong task queue, a worker that fails at every
task, or no worker at all.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskFailedEventAttributes
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs import failures
from everstep.core import names

T = TypeVar("T")


class NoResponse(Failed):
    """No worker answered in time."""

    def __init__(self, request: str, why: str) -> None:
        self.why = why
        super().__init__(Exit.UNREACHABLE, f"{request}: {why}")


PATIENCE_S = 10.0
"""Time that a worker has to answer: one that was killed is replaced within this time."""
PATIENCE_S_MOST = 86_400.0

NO_WORKER = (
    "no worker answered within {patience:g} s; `everstep doctor` looks why, `python -m worker` "
    "starts one"
)

QUEUE = f"workers serve jobs on {names.TASK_QUEUE}"
REQUEUE = (
    "`temporal workflow terminate -w {id}`, and start it again with "
    f"`--task-queue {names.TASK_QUEUE}`"
)

FAILING = (
    "its worker fails at it again and again (attempt {attempt}{why}); look into the worker's log and "
    "`temporal workflow show -w {id}`"
)

NONDETERMINISM = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
UNREPLAYABLE = (
    "; no worker of this version can go on with this run: start one of the version that began it, or give "
    "{id} a new run, which takes over what runs: `temporal workflow reset -w {id} -t FirstWorkflowTask "
    "--reason unreplayable`"
)

ATTEMPTS_OF_THE_KILLED = 2
"""A worker that was killed in the middle of a task costs an attempt too, without any failure."""

TASK_ENDS = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    }
)
NEWEST_EVENTS = 20
MESSAGE_LENGTH = 200
LOOK_TIMEOUT = timedelta(seconds=3)

SILENCE = frozenset(
    {
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.FAILED_PRECONDITION,  # the server has seen no worker for a while
    }
)
"""Status codes that mean that no worker answered."""


async def send_query(
    client: Client,
    workflow_id: str,
    query: str,
    argument: Any = None,
    *,
    result_type: type | None = None,
) -> Any:
    """The answer to a query."""
    handle = client.get_workflow_handle(workflow_id)
    silence = f"{workflow_id} does not answer the query {query}"
    try:
        args = [] if argument is None else [argument]
        return await _answered(
            client,
            workflow_id,
            handle.query(query, args=args, result_type=result_type),
            otherwise=silence,
        )
    except WorkflowQueryFailedError as error:
        raise Failed(Exit.UNREACHABLE, f"{silence}: {error}") from None


async def send_update(
    client: Client,
    workflow_id: str,
    update: str,
    argument: Any,
    *,
    own_id: str | None = None,
    takes_s: float = 0.0,
) -> Any:
    """The answer to an update. Raises `Failed` with the workflow's own sentence if it refuses."""
    handle = client.get_workflow_handle(workflow_id)
    silence = f"whether {workflow_id} took {update} is not known"
    try:
        done = handle.execute_update(update, argument, id=own_id)
        return await _answered(client, workflow_id, done, otherwise=silence, takes_s=takes_s)
    except WorkflowUpdateFailedError as error:
        reason = getattr(error.cause, "message", None) or error
        raise Failed(Exit.USAGE, f"{workflow_id} refuses: {reason}") from None


async def _answered(
    client: Client,
    workflow_id: str,
    request: Awaitable[T],
    *,
    otherwise: str,
    takes_s: float = 0.0,
) -> T:
    """Await the request. If no answer comes in time, raise `Failed` with the reason that the server shows."""
    patience = patience_s() + takes_s
    try:
        async with asyncio.timeout(patience):
            return await request
    except TimeoutError:
        pass
    except WorkflowUpdateRPCTimeoutOrCancelledError:
        _unless_interrupted()
    except RPCError as error:
        if error.status not in SILENCE:
            raise
        _unless_interrupted()
    description = await client.get_workflow_handle(workflow_id).describe(rpc_timeout=LOOK_TIMEOUT)
    if description.task_queue != names.TASK_QUEUE:
        queue = f"it waits on task queue {description.task_queue}, and {QUEUE}"
        raise Failed(Exit.UNREACHABLE, f"{otherwise}: {queue}; {REQUEUE.format(id=workflow_id)}")
    if failing := await _failing_worker(client, workflow_id, description.raw_description):
        raise Failed(Exit.UNREACHABLE, f"{otherwise}: {failing}")
    raise NoResponse(otherwise, NO_WORKER.format(patience=patience))


async def _failing_worker(
    client: Client, workflow_id: str, description: DescribeWorkflowExecutionResponse
) -> str | None:
    """A sentence about a worker that fails at every task of this workflow; None if no worker does."""
    attempt = description.pending_workflow_task.attempt
    if attempt < 2:
        return None
    failed = await _newest_failure(client, description.workflow_execution_info.execution)
    if failed is None:
        if attempt <= ATTEMPTS_OF_THE_KILLED:
            return None
        return FAILING.format(attempt=attempt, why="", id=workflow_id)
    reason = " ".join((await failures.message(client, failed.failure)).split())[:MESSAGE_LENGTH]
    is_unreplayable = failed.cause == NONDETERMINISM
    sentence = FAILING + (UNREPLAYABLE if is_unreplayable else "")
    return sentence.format(attempt=attempt, why=f": {reason}" if reason else "", id=workflow_id)


async def _newest_failure(
    client: Client, run: WorkflowExecution
) -> WorkflowTaskFailedEventAttributes | None:
    """The reported failure of the newest task of a workflow, if that failed."""
    newest = await _newest(client, run, TASK_ENDS)
    if newest is None or newest.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
        return None
    return newest.workflow_task_failed_event_attributes


async def newest_answer(client: Client, run: WorkflowExecution) -> float | None:
    """When a worker last did something with a workflow: since then nothing of it can have changed."""
    done = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED})
    newest = await _newest(client, run, done)
    return None if newest is None else newest.event_time.ToMicroseconds() / 1e6


async def _newest(
    client: Client, run: WorkflowExecution, kinds: frozenset[Any]
) -> HistoryEvent | None:
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=run, maximum_page_size=NEWEST_EVENTS
    )
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        request, timeout=LOOK_TIMEOUT
    )
    return next((event for event in answer.history.events if event.event_type in kinds), None)


def _unless_interrupted() -> None:
    """Raise CancelledError if Ctrl-C was the cause, which the SDK hides behind an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from None


def patience_s() -> float:
    """The value of `EVERSTEP_PATIENCE_S`, or its default."""
    text = os.environ.get("EVERSTEP_PATIENCE_S", str(PATIENCE_S))
    try:
        patience = float(text)
    except ValueError:
        patience = math.nan
    if not 0 < patience <= PATIENCE_S_MOST:  # nor is what is no number
        problem = f"EVERSTEP_PATIENCE_S is {text!r}; give a number of seconds, at most a day"
        raise Failed(Exit.USAGE, problem)
    return patience
