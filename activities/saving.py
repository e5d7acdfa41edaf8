"""Wait until ranks that got the signal to save have saved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from everstep.backends.base import Backend
from everstep.core.world import SaveOrder, SaveState

POLL_S = 0.5


async def until_saved(
    backend: Backend, order: SaveOrder, beat: Callable[..., None], *, within_s: float
) -> SaveState:
    """Repeat the request until something is saved, nothing is to be waited for, or the time is over."""
    ends_at = time.monotonic() + within_s
    while True:
        state = await backend.ensure_save_requested(order)
        beat()
        is_awaited = state.saved is None and (state.signalled or state.silent)
        if not is_awaited or time.monotonic() >= ends_at:
            return state
        await asyncio.sleep(POLL_S)
