"""A quarantine that gives no answer: the caller gets one error, and a cancellation at once."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from activities.quarantine_client import TemporalQuarantine
from everstep.core.recovering.quarantine import Request
from everstep.steps.step_run import QuarantineUnreachable
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S

REQUEST = Request(node="n1", reason="broken", by="test")


async def unanswered(server: DevServer, namespace: str, *, patience_s: float) -> TemporalQuarantine:
    """The server starts it, and no worker is there to answer."""
    client = await server.connect(namespace)
    return TemporalQuarantine(client=client, patience=timedelta(seconds=patience_s))


async def test_a_call_that_times_out_leaves_no_error_behind(
    server: DevServer, namespace: str
) -> None:
    quarantine = await unanswered(server, namespace, patience_s=0.3)
    of_earlier_tests = unretrieved_errors()
    assert not await is_answered(quarantine)
    assert unretrieved_errors() <= of_earlier_tests


async def test_a_call_that_is_cancelled_ends_at_once(server: DevServer, namespace: str) -> None:
    """It stopped the request alone, and the next one was sent until all patience was over."""
    quarantine = await unanswered(server, namespace, patience_s=10 * HUNG_S)
    call = asyncio.create_task(quarantine.isolate("local", REQUEST))
    started = quarantine.client.get_workflow_handle("quarantine/local")
    async with asyncio.timeout(HUNG_S):
        while not await is_there(started):
            await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait({call}, timeout=HUNG_S)
    assert call.cancelled()


def unretrieved_errors() -> set[asyncio.Future[Any]]:
    """The futures that would print their error once nothing refers to them any more."""
    futures = [one for one in gc.get_objects() if isinstance(one, asyncio.Future)]
    return {one for one in futures if one._log_traceback}


async def is_answered(quarantine: TemporalQuarantine) -> bool:
    try:
        await quarantine.isolate("local", REQUEST)
    except QuarantineUnreachable:
        return False
    return True


async def is_there(workflow: Any) -> bool:
    try:
        await workflow.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True
