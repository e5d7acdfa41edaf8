"""A course comes to its end, also where a job is stuck and answers no command any more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from tests.chaos.deeds import How, change_checkpoint, halve_checkpoint
from tests.chaos.ground import Folder, Ground
from tests.chaos.plan import Event


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


@dataclass(slots=True)
class SlowHandle:
    """A job whose update is answered at the second call; the server gives up the first one."""

    calls: int = 0

    async def execute_update(self, *_args: object, **_options: object) -> str:
        self.calls += 1
        if self.calls == 1:
            raise WorkflowUpdateRPCTimeoutOrCancelledError
        return "answer"


async def test_a_command_that_the_server_gives_up_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = SlowHandle()
    monkeypatch.setattr(Empty, "handle", lambda _ground, _job: handle)
    assert await empty().command("first", "stop", {}, id="1") == "answer"
    assert handle.calls == 2


@pytest.mark.parametrize("spoil", [halve_checkpoint, change_checkpoint])
async def test_no_checkpoint_is_spoiled_on_a_disk_that_hangs(tmp_path: Path, spoil: How) -> None:
    """The course would wait with it, and what lets the disk go on is a part of the course."""
    ground, folder, works = empty(), Folder(path=tmp_path), asyncio.Event()
    ground.folders = {"first": folder}
    folder.checkpoints.mkdir(parents=True)
    for step in (10, 20):
        (folder.checkpoints / f"step-{step}.json").write_text("0x1.8p+0")
    event = Event(number=1, at_s=0.0, action="", job="first", share=0.0, lasts_s=1.0)

    async def hangs() -> None:
        await works.wait()

    ground.in_background(hangs(), "storage first")
    assert await spoil(ground, event) is None
    works.set()
    await ground.put_back()
    assert await spoil(ground, event) is not None
