"""Thousands of signals to one workflow, as fast as the server takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.client import WorkflowHandle

AT_ONCE = 50
"""Signals under way to the server."""

Flood = Sequence[tuple[str, Mapping[str, Any]]]


async def send(job: WorkflowHandle[Any, Any], flood: Flood) -> None:
    """The server orders what comes together as it likes; pairs have to stay in order."""
    pairs = [flood[i : i + 2] for i in range(0, len(flood), 2)]

    async def send_share(share: int) -> None:
        for pair in pairs[share::AT_ONCE]:
            for name, args in pair:
                await job.signal(name, args)

    await asyncio.gather(*(send_share(share) for share in range(AT_ONCE)))
