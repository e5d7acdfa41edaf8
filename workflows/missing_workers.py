"""Run activities of which no worker may take the first try: the job shows that, and they are ordered again.

An activity that began reports its failures itself; from the server comes the failure of one that did not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType

from everstep.core.bounds import cut
from workflows import options

T = TypeVar("T")
Call = Callable[[Mapping[str, Any]], Coroutine[Any, Any, T]]
"""Order an activity with these options."""
Show = Callable[[str | None], Awaitable[None]]

WHY_MOST = 120


async def run_step(
    call: Call[T],
    show: Show,
    *,
    first: Mapping[str, Any] = options.FIRST_STEP,
    usual: Mapping[str, Any] = options.STEP,
) -> T:
    """The result of the activity. If no worker begins it soon, `show` gets what it waits for.

    The first try ends when no worker takes it in time; the second one waits for a worker without limit.
    """
    try:
        return await call(first)
    except ActivityError as error:
        why = not_begun(error)
        if why is None:
            raise
    await show(why)
    result = await call(usual)
    await show(None)
    return result


async def run_call(call: Call[T], show: Show) -> T:
    """Run a short call that touches the cluster, and show where no worker takes it."""
    return await run_step(call, show, first=options.FIRST_CALL, usual=options.CALL)


def not_begun(error: BaseException) -> str | None:
    """Why no worker began the activity; None if one did, or if it was cancelled."""
    if not isinstance(error, ActivityError):
        return None
    cause = error.cause
    if isinstance(cause, exceptions.TimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START:
        within_s = options.TAKEN_WITHIN.total_seconds()
        return f"a worker that takes {error.activity_type}: none did for {within_s:g} s"
    if isinstance(cause, ApplicationError) and cause.type == options.NOT_REGISTERED:
        return f"a worker that has {error.activity_type}: {cut(cause.message, WHY_MOST)}"
    return None


def newest_heartbeat(error: BaseException) -> object:
    """What the activity reported last, of an activity whose worker was lost."""
    cause = error.cause if isinstance(error, ActivityError) else None
    details = cause.last_heartbeat_details if isinstance(cause, exceptions.TimeoutError) else ()
    return next(iter(details), None)
