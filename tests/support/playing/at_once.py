"""The tests of a file, begun together and some at a time: what waits leaves the machine to the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

AT_ONCE = 3
T = TypeVar("T")


@asynccontextmanager
async def begun(
    request: pytest.FixtureRequest, play: Callable[[Any], Awaitable[T]]
) -> AsyncIterator[Mapping[str, asyncio.Task[T]]]:
    """Tasks by the names of the selected tests of this file, in their order.

    `play` gets the one parameter of a test.
    """
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(item: pytest.Function) -> T:
        (parameter,) = item.callspec.params.values()
        async with turn:
            return await play(parameter)

    tasks = {
        item.name: asyncio.create_task(in_turn(item))
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
