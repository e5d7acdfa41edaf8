"""The books of a cluster that adopt a job, and calls about a job that is adopted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import names
from everstep.core.state import JobState
from everstep.core.world import JobRef
from workflows import options, signatures
from workflows.commanding import rejected
from workflows.recovery import is_cancelled, raise_cause

T = TypeVar("T")


async def adopted_by(state: JobState, before: tuple[str, int]) -> tuple[str, int]:
    """Have the job adopted by the books of its cluster. Returns their identity and the job's generation.

    `before`: the result of the last adoption; the same again is refused.
    """
    job = state.job
    if not job.books:
        raise rejected("the job has not reached its cluster yet: there is nothing to adopt")
    try:
        books = await workflow.execute_activity(
            signatures.adopt,
            args=[job, state.generation, dict(state.spec.folders)],
            task_queue=names.cluster_queue(state.spec.cluster),
            summary=f"have generation {state.generation} adopted",
            **options.CALL,
        )
    except ActivityError as error:
        raise_cause(error)
    if not books:
        raise rejected("the job is in this cluster database already: there is nothing to adopt")
    if (books, state.generation) == before:
        raise rejected(
            "this cluster database has just adopted the job: there is nothing more to adopt"
        )
    return books, state.generation


async def in_current_books(
    job: Callable[[], JobRef], call: Callable[[JobRef], Coroutine[Any, Any, T]]
) -> T:
    """The result of a call about the job. If other books adopt the job meanwhile, call again with those.

    The first call is cancelled then. A result that came in spite of that counts. `job` returns the current
    reference: an adoption changes its `books`.
    """
    while True:
        before = job()
        task = asyncio.create_task(call(before))
        try:
            await workflow.wait_condition(lambda: task.done() or job() != before)  # noqa: B023
        except asyncio.CancelledError:  # the caller is cancelled
            task.cancel()
            return await task
        if task.done():
            return await task
        task.cancel()
        try:
            return await task
        except (ActivityError, asyncio.CancelledError):
            if is_cancelled():  # the caller, at the moment of the adoption
                raise
