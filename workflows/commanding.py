"""Checks of a command before it is noted: its argument, the state of the job, the devices that it names."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from everstep.converter import Unreadable
from everstep.core import names
from everstep.core.errors import CommandRejected
from everstep.core.loop import commands
from everstep.core.state import Command, JobState
from workflows import options, signatures

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
