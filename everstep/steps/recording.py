"""Writing a job's journal. Nothing waits for it long, and nothing fails for it."""

from __future__ import annotations

import asyncio

from everstep.backends.base import Backend
from everstep.core.world import Journal

WRITE_S = 2.0
"""Storage may hang: then the entries are written later."""


async def record(backend: Backend, journal: Journal) -> int:
    """The number of the last entry that is where it belongs; 0: none was written."""
    if not journal.entries:
        return 0
    try:
        done = await asyncio.wait_for(backend.ensure_recorded(journal), timeout=WRITE_S)
    except TimeoutError:
        return 0
    return journal.last if done else 0
