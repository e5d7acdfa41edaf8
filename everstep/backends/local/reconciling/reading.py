"""Storage as a worker reads it: in threads that nobody else needs, and that are given up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from everstep.agent.storage.reading import Ended, GivenUp, begin
from everstep.core.errors import BackendUnavailable

T = TypeVar("T")

WITHIN_S = 60.0
"""Storage of many checkpoints may be slow; one that takes longer does not answer."""


async def read(folder: str, work: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """What the work answers. Raises BackendUnavailable if it takes too long, or ends in an OSError."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Ended] = loop.create_future()

    def settle(ended: Ended) -> None:
        if not answer.done():
            answer.set_result(ended)

    def then(ended: Ended) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, ended)

    try:
        begin(folder, work, then)
        ended = await asyncio.wait_for(answer, within_s)
        if ended.error is not None:
            raise ended.error
    except (GivenUp, TimeoutError):
        raise BackendUnavailable(str(GivenUp(folder))) from None
    except OSError as error:
        raise BackendUnavailable(f"{folder}: {error}") from None
    return ended.answer  # type: ignore[return-value]  # what the work returned
