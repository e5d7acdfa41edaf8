"""Requests to an API server that are under way together."""

from __future__ import annotations

import asyncio

import pytest

from everstep.backends.kubernetes.reaching import all_at_once, both
from everstep.core.errors import BackendUnavailable


class Requests:
    """One that fails once the other is under way, and one that is never answered."""

    def __init__(self) -> None:
        self.under_way = asyncio.Event()
        self.ended = False

    async def failing(self) -> None:
        await self.under_way.wait()
        raise BackendUnavailable("no answer")

    async def waiting(self) -> None:
        try:
            self.under_way.set()
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_after_an_error_no_other_request_goes_on() -> None:
    requests = Requests()
    with pytest.raises(BackendUnavailable):
        await all_at_once([requests.failing(), requests.waiting()])
    assert requests.ended


async def test_after_an_error_of_one_of_two_requests_the_other_has_ended() -> None:
    requests = Requests()
    with pytest.raises(BackendUnavailable):
        await both(requests.failing(), requests.waiting())
    assert requests.ended


async def test_two_answers_come_in_the_order_of_their_requests() -> None:
    async def answer(text: str) -> str:
        return text

    assert await both(answer("first"), answer("second")) == ("first", "second")
