"""Requests to an API server that are under way together."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from everstep.backends.kubernetes.reaching import all_at_once, both
from everstep.core.errors import BackendUnavailable


class Requests:
    """One that fails once the other is under way, and one that is answered later than that."""

    def __init__(self) -> None:
        self.under_way = asyncio.Event()
        self.is_answered = False

    async def failing(self) -> None:
        await self.under_way.wait()
        raise BackendUnavailable("no answer")

    async def late(self) -> None:
        self.under_way.set()
        for _ in range(20):
            await asyncio.sleep(0)
        self.is_answered = True


async def test_after_an_error_every_other_request_is_awaited() -> None:
    requests = Requests()
    with pytest.raises(BackendUnavailable):
        await all_at_once([requests.failing(), requests.late()])
    assert requests.is_answered


async def test_after_an_error_of_one_of_two_requests_the_other_is_awaited() -> None:
    requests = Requests()
    with pytest.raises(BackendUnavailable):
        await both(requests.failing(), requests.late())
    assert requests.is_answered


async def test_a_call_that_is_given_up_leaves_no_request_unawaited() -> None:
    requests = [asyncio.Event().wait() for _ in range(100)]
    call = asyncio.create_task(all_at_once(requests))
    for _ in range(3):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert {inspect.getcoroutinestate(each) for each in requests} == {inspect.CORO_CLOSED}


@pytest.mark.parametrize("refused", range(3))
async def test_a_deletion_that_is_refused_keeps_no_other_from_being_done(refused: int) -> None:
    """Of more deletions than are under way at once."""
    done: list[int] = []

    async def delete(number: int) -> None:
        await asyncio.sleep(0)
        if number == refused:
            raise BackendUnavailable("refused")
        done.append(number)

    with pytest.raises(BackendUnavailable):
        await all_at_once(map(delete, range(100)))
    assert sorted(done) == [number for number in range(100) if number != refused]


async def test_requests_that_are_cancelled_are_all_cancelled() -> None:
    begun, ended = asyncio.Event(), 0

    async def endless() -> None:
        nonlocal ended
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    requests = asyncio.ensure_future(both(endless(), endless()))
    await begun.wait()
    await asyncio.sleep(0)
    requests.cancel()
    with pytest.raises(asyncio.CancelledError):
        await requests
    assert ended == 2


async def test_two_answers_come_in_the_order_of_their_requests() -> None:
    async def answer(text: str) -> str:
        return text

    assert await both(answer("first"), answer("second")) == ("first", "second")


async def test_an_error_that_is_an_answer_is_not_raised() -> None:
    """A creation answers with the refusal where the pod may be taken later."""
    error = BackendUnavailable("quota")

    async def answer() -> BackendUnavailable:
        return error

    assert await all_at_once([answer()]) == [error]
