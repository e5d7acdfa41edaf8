"""The question after Ctrl-C: what counts as an answer, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import tty
from collections.abc import Iterator

import pytest

from everstep.cli.running_here import choosing
from everstep.cli.running_here.choosing import Choice
from tests.support.patience import HUNG_S


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Where a person types, and where the command reads it."""
    hand, command = os.openpty()
    yield hand, command
    os.close(hand)
    os.close(command)


@pytest.mark.parametrize("usual", [Choice.STOP, Choice.LEAVE])
async def test_enter_is_the_answer_that_is_shown(
    terminal: tuple[int, int], capsys: pytest.CaptureFixture[str], usual: Choice
) -> None:
    asking = asyncio.ensure_future(choosing.answer_at(terminal[1], usual))
    os.write(terminal[0], b"\n")
    assert await asyncio.wait_for(asking, HUNG_S) is usual
    assert f"[{usual.value[0]}] " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "chosen", "times"),
    [
        ("s\n", Choice.STOP, 1),
        (" Stop \n", Choice.STOP, 1),
        ("l\n", Choice.LEAVE, 1),
        ("g\n", Choice.GO_ON, 1),
        ("\x04", Choice.LEAVE, 1),
        ("what\nsoon\ns\n", Choice.STOP, 3),
    ],
)
async def test_an_answer_that_is_none_is_asked_for_again(
    terminal: tuple[int, int],
    capsys: pytest.CaptureFixture[str],
    typed: str,
    chosen: Choice,
    times: int,
) -> None:
    hand, command = terminal
    asking = asyncio.ensure_future(choosing.answer_at(command, Choice.STOP))
    os.write(hand, typed.encode())
    assert await asyncio.wait_for(asking, HUNG_S) is chosen
    assert capsys.readouterr().out.count("[l]eave") == times


async def test_a_terminal_that_goes_leaves_the_job(terminal: tuple[int, int]) -> None:
    hand, command = os.openpty()
    tty.setraw(command)
    asking = asyncio.ensure_future(choosing.answer_at(command, Choice.STOP))
    os.close(hand)
    assert await asyncio.wait_for(asking, HUNG_S) is Choice.LEAVE
    os.close(command)


async def test_all_else_goes_on_while_nobody_answers(terminal: tuple[int, int]) -> None:
    asking = asyncio.ensure_future(choosing.answer_at(terminal[1], Choice.STOP))
    async with asyncio.timeout(HUNG_S):
        for _ in range(3):
            await asyncio.sleep(0)
    assert not asking.done()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_a_signal_is_called_by_its_name() -> None:
    assert choosing.reason(signal.SIGINT) == "Ctrl-C"
    assert choosing.reason(signal.SIGTERM) == "SIGTERM"
