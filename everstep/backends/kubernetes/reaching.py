"""Errors of the API server as those of a backend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

from everstep.backends.kubernetes.api import Refused, Unreachable
from everstep.core.errors import BackendUnavailable, ClusterRefused
from everstep.core.waits import WaitCause, WaitKind

T = TypeVar("T")
U = TypeVar("U")

_AT_ONCE = 32
"""Requests to the API server for one job."""
ATTEMPTS = 100
"""Attempts to replace an object that others replace too. With many workers some lose a few times in a row."""
_RETRY_S = 0.05
_OVER_QUOTA = "exceeded quota"
_TAKEN_LATER = (
    _OVER_QUOTA,
    'serviceaccount "default" not found',
    "cannot create resource",
    "because it is being terminated",
)
"""Refusals that end by themselves or by an operator: quota is given back, a new namespace gets its service
account, a role that is replaced grants its rights again, and a deleted namespace may be made again."""


_NEVER_TAKEN = frozenset({400, 413, 422})
"""Statuses of an object that is wrong by itself or too large."""


def may_be_taken_later(refusal: Refused) -> bool:
    """Whether the API server may create the same object later."""
    return refusal.status == 403 and any(words in str(refusal) for words in _TAKEN_LATER)


def refusal_wait(
    refusal: Refused, *, kind: WaitKind = WaitKind.REFUSED, of_quota: WaitKind = WaitKind.QUOTA
) -> WaitCause:
    """The wait of a job until the API server takes the object that it refuses now."""
    return (of_quota if _OVER_QUOTA in str(refusal) else kind).of(refusal)


async def reached(request: Awaitable[T]) -> T:
    """The answer. Raises BackendUnavailable where there is none, or a refusal."""
    try:
        return await request
    except (Refused, Unreachable) as error:
        raise BackendUnavailable(str(error)) from None


async def accepted(request: Awaitable[T]) -> T:
    """As `reached`; ClusterRefused where the API server would refuse the same object again."""
    try:
        return await request
    except Refused as error:
        kind = ClusterRefused if error.status in _NEVER_TAKEN else BackendUnavailable
        raise kind(str(error)) from None
    except Unreachable as error:
        raise BackendUnavailable(str(error)) from None


async def allowing(request: Awaitable[object], *statuses: int) -> None:
    """As `reached`; a refusal with one of these statuses is fine, for a request that may be repeated."""
    try:
        await request
    except Refused as error:
        if error.status not in statuses:
            raise BackendUnavailable(str(error)) from None
    except Unreachable as error:
        raise BackendUnavailable(str(error)) from None


def is_late(refusal: Refused, *, creates: bool) -> bool:
    """Whether an object was not written because another worker was first: it is to be read again.

    Where nothing is found to create an object in, its namespace is gone.
    """
    return refusal.status == 409 or (refusal.status == 404 and not creates)


async def before_next_attempt() -> None:
    """A short wait, of a random length."""
    await asyncio.sleep(_RETRY_S * random.random())


def never_first(what: str) -> BackendUnavailable:
    """The error after ATTEMPTS: another writer changes the object all the time."""
    return BackendUnavailable(
        f"{what} was changed by others {ATTEMPTS} times before it was written"
    )


async def all_at_once(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers of all requests, of which only so many are under way at a time."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def answer(request: Coroutine[Any, Any, T]) -> T:
        try:
            async with places:
                return await request
        finally:
            request.close()  # of a call that was given up before its turn

    return await _together(*map(answer, requests))


async def both(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """The answers of two requests at once. Where one raises, the other is awaited first."""
    answers: tuple[Any, Any] = tuple(await _together(first, second))
    return answers


async def _together(*requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """All answers, or the first error once each request has its answer.

    None is cancelled: a deletion that is refused for ever would keep the others from ever being done.
    """
    tasks = [asyncio.ensure_future(request) for request in requests]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]  # an error may also be an answer, unlike for `gather`
