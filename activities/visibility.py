"""What an activity waits for, or how it fails again and again, for the status and the events of its job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.failures import WRONG_CLUSTER, is_worth_a_line, translated
from everstep.core.state import Wait
from everstep.core.waits import WaitKind

SIGNAL_WITHIN = timedelta(seconds=2)
WAITING_SHOWN = 300
FAILS_VISIBLY_FROM = 2
"""A step that fails once is not worth a word: it is tried again at once."""

FAILS_IN_EVENTS_AT = 4
"""The attempt whose failure is an event as well. It is a number of `is_worth_a_line`."""


async def signal_wait(
    job: str, plan: str | None, wait: Wait | None, *, is_refusal: bool = False
) -> None:
    """Report to the job what its plan, or its watch, waits for; None: it goes on.

    Only for display: if the signal fails, the wait goes on.
    """
    handle = activity.client().get_workflow_handle(job)
    values = {"what": None} if wait is None else asdict(wait)
    notice = {"plan": plan, "is_refusal": is_refusal, **values}
    try:
        await handle.signal("waiting", notice, rpc_timeout=SIGNAL_WITHIN)
    except RPCError as error:
        what = values["what"]
        activity.logger.info("the job could not be sent that it waits for %s: %s", what, error)


@asynccontextmanager
async def visible(doing: str, job: str, plan: str | None = None) -> AsyncIterator[None]:
    """Report an activity that fails again and again in the job's status and events.

    The reports become ever rarer, because each is a signal in the job's history. A step of a plan, and a
    refusal of other books, is reported from the second failure on, any other from the fourth on.
    """
    attempt = activity.info().attempt
    try:
        with translated():
            yield
    except Exception as error:
        is_refusal = isinstance(error, ApplicationError) and error.type == WRONG_CLUSTER
        is_early = is_refusal or plan is not None
        shown_from = FAILS_VISIBLY_FROM if is_early else FAILS_IN_EVENTS_AT
        if attempt < shown_from or not is_worth_a_line(attempt) or activity.is_cancelled():
            pass
        elif is_refusal:
            wait = Wait.of(WaitKind.BOOKS.of(_sentence(error)))
            await signal_wait(job, plan, wait, is_refusal=attempt == FAILS_VISIBLY_FROM)
        else:
            wait = Wait.of(WaitKind.FAILING.of(doing, attempt, _sentence(error)))
            wait = replace(wait, what=wait.what[:WAITING_SHOWN])
            await signal_wait(job, plan, wait, is_refusal=attempt == FAILS_IN_EVENTS_AT)
        raise
    if attempt > FAILS_VISIBLY_FROM:
        await signal_wait(job, plan, None)


def _sentence(error: Exception) -> str:
    """What an error says; the name of its type only if that is all there is."""
    message = error.message if isinstance(error, ApplicationError) else str(error)
    return message or type(error).__name__
