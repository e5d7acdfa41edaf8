"""What a job calls outside its loop: checks of commands, its adoption, devices, leftover Recoveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from everstep.converter import Unreadable
from everstep.core import names
from everstep.core.deciding.decision import Plan
from everstep.core.errors import CommandRejected
from everstep.core.loop import commands
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.state import Command, JobState
from everstep.core.world import JobRef
from workflows import options, signatures
from workflows.recovery import is_cancelled, raise_cause

T = TypeVar("T")

CANCEL = Command(name="cancel", args={"status": "Canceled", "reason": "the workflow was cancelled"})


def check_command(state: JobState, name: str, args: Any) -> None:
    """Raise an ApplicationError if the command cannot be accepted."""
    try:
        commands.accept(state, name, args, now=workflow.time())
    except CommandRejected as error:
        raise rejected(str(error)) from None


def rejected(why: str) -> ApplicationError:
    return ApplicationError(why, type="CommandRejected", non_retryable=True)


def only_object(argument: Any) -> Any:
    """The argument of a command, `{}` for none. Raises CommandRejected if it was not readable JSON."""
    if isinstance(argument, Unreadable):
        raise CommandRejected(f"the argument is not readable JSON: {argument.why}")
    return {} if argument is None else argument


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


async def unknown_device(cluster: str, node: str, device: int) -> str:
    """Refuse a device that the node does not have. Returns a sentence where that cannot be found out."""
    try:
        devices = await workflow.execute_activity(
            signatures.devices_of,
            node,
            task_queue=names.cluster_queue(cluster),
            summary=f"look for device {device} of {node}",
            **options.QUESTION,
        )
    except ActivityError:
        return f"whether {node} has a device {device} is unknown: its cluster did not answer"
    if not devices:
        return f"whether {node} has a device {device} is unknown: its cluster shows none"
    if device not in devices:
        raise rejected(f"report_fault: {node} has no device {device}; it has {len(devices)}")
    return ""


async def end_recovery(workflow_id: str, plan: Plan) -> str:
    """Free the ID of a restart that an earlier run of the job began, as before a reset.

    Returns the type of the workflow that has the ID, if the job did not start it; else nothing.
    """
    return await workflow.execute_activity(
        signatures.end_recovery,
        args=[workflow_id, plan.job.id, plan.key],
        task_queue=names.cluster_queue(plan.cluster),
        summary="end what an earlier run of this job left under the same ID",
        **options.CALL,
    )


async def hand_over(state: JobState, how: Mapping[str, Any]) -> tuple[str, ...]:
    """Send the quarantine, at the job's end, the isolations that it has not answered.

    Returns the nodes that it isolated.
    """
    return await workflow.execute_activity(
        signatures.hand_over,
        args=[state.job, state.spec.cluster, state.deferred],
        task_queue=names.cluster_queue(state.spec.cluster),
        summary=", ".join(isolation.node for isolation in state.deferred),
        **how,
    )


def report_of_no_news(order: WatchOrder) -> WatchReport:
    """The report in place of that of a watch that was ended."""
    return WatchReport(
        news="interrupted",
        now=order.since,
        cursor=order.cursor,
        learned=order.learned,
        generation=order.generation,
        warnings=order.warnings,
    )


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
