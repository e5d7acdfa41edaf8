"""The server, for the time of one command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio.client import Client

from everstep.client.connection import client, rpc_errors_as_failed

T = TypeVar("T")


def with_server(work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Run the work with a client and return its result. Raises `Failed` for every error of the server."""

    async def connected() -> T:
        there = await client()
        with rpc_errors_as_failed(there):
            return await work(there)

    return asyncio.run(connected())
