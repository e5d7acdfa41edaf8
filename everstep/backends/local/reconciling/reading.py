"""Read storage from a worker without blocking its event loop or its thread pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from everstep.agent.storage.reading import StorageHangs, begin
from everstep.core.errors import BackendUnavailable

T = TypeVar("T")

WITHIN_S = 60.0
"""Time limit of a read; storage with many checkpoints may be slow."""
READ_S = 10.0
"""Time limit of reading a fence; storage that takes longer counts as unreadable."""


async def read(folder: str, work: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """Return what the work returns. Raises BackendUnavailable if it takes too long or raises an OSError."""
    try:
        async with asyncio.timeout(within_s):
            return await asyncio.wrap_future(begin(folder, work))
    except (StorageHangs, TimeoutError):
        raise BackendUnavailable(str(StorageHangs(folder))) from None
    except OSError as error:
        raise BackendUnavailable(f"{folder}: {error}") from None
