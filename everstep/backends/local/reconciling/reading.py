"""Storage as a worker reads it: in threads that nobody else needs, and that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from everstep.agent.storage.reading import StorageHangs, begin
from everstep.core.errors import BackendUnavailable

T = TypeVar("T")

WITHIN_S = 60.0
"""Storage of many checkpoints may be slow; one that takes longer does not answer."""
READ_S = 10.0
"""Storage that takes longer for a fence does not answer: as with a fence that cannot be read."""


async def read(folder: str, work: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """What the work answers. Raises BackendUnavailable if it takes too long, or ends in an OSError."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(begin(folder, work)), within_s)
    except (StorageHangs, TimeoutError):
        raise BackendUnavailable(str(StorageHangs(folder))) from None
    except OSError as error:
        raise BackendUnavailable(f"{folder}: {error}") from None
