"""Errors of the API server as those of a backend."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from everstep.backends.kubernetes.api import Refused, Unreachable
from everstep.core.errors import BackendUnavailable

T = TypeVar("T")


async def reached(request: Awaitable[T]) -> T:
    """The answer. Raises BackendUnavailable where there is none, or a refusal."""
    try:
        return await request
    except (Refused, Unreachable) as error:
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
