"""Workers in the process of a test. They end with it, also when the test fails and workflows are stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.worker import Worker

from tests.support.patience import HUNG_S

FAILED_S = 5.0
"""How long a failed test waits for its workers: what made it fail may keep them from ending."""


@asynccontextmanager
async def at_work(*workers: Worker) -> AsyncIterator[None]:
    begun = [asyncio.ensure_future(worker.run()) for worker in workers]
    within_s = FAILED_S
    try:
        yield
        within_s = HUNG_S
    finally:
        ended = asyncio.gather(*(worker.shutdown() for worker in workers), *begun)
        _, late = await asyncio.wait([ended], timeout=within_s)
        if late:
            ended.add_done_callback(lambda given_up: given_up.exception())
            ended.cancel()
            if within_s == HUNG_S:
                raise AssertionError("a worker does not end")
        else:
            ended.result()
