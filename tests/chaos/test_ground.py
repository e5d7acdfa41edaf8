"""A course comes to its end, also where a job is stuck and answers no command any more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.chaos.ground import Ground


@dataclass(slots=True, kw_only=True)
class Empty(Ground):
    """A ground without jobs that notes that it is healed."""

    order: list[str] = field(default_factory=list)

    def document(self, job: str) -> dict[str, Any]:
        raise AssertionError(job)

    async def heal(self) -> None:
        self.order.append("healed")

    async def release(self) -> None:
        """Nothing is isolated."""

    async def left(self) -> list[str]:
        return []


def empty() -> Empty:
    nothing = cast("Any", None)
    return Empty(server=nothing, client=nothing, folders={}, workers=(), wire=nothing)


async def test_what_is_away_comes_back_at_once_and_a_command_without_answer_is_given_up() -> None:
    ground = empty()
    never = asyncio.Event()

    async def undo() -> None:
        ground.order.append("back")

    async def command() -> None:
        await never.wait()

    ground.for_a_while("node", 1_000.0, undo)
    ground.in_background(command(), "command")
    await ground.put_back(within_s=0.1)
    assert ground.order == ["back", "healed"]


async def test_a_mistake_of_the_chaos_itself_is_raised() -> None:
    ground = empty()

    async def fails() -> None:
        raise ValueError("a mistake")

    ground.in_background(fails(), "fails")
    with pytest.raises(ValueError, match="a mistake"):
        await ground.put_back(within_s=0.1)
