"""The backend's verbs as calls by name: one shape for this process and for the socket.

A subclass of `Verbs` has `call`: `backend.py` calls the cluster in this process, `client.py` the server.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import cache, partial, wraps
from typing import Any, TypeVar, cast

from everstep.backends.base import Backend

F = TypeVar("F", bound=Callable[..., object])

ADMIN = "admin."
"""Prefix of the calls for tests."""

_signature = cache(inspect.signature)


class Calls(ABC):
    """Carries a call to the cluster and returns its answer, of the type in the verb's signature."""

    @abstractmethod
    async def call(self, verb: str, /, **args: Any) -> Any: ...


async def _send(
    calls: Calls, name: str, verb: Callable[..., object], /, *args: Any, **options: Any
) -> Any:
    arguments = _signature(verb).bind(calls, *args, **options).arguments
    del arguments["self"]
    return await calls.call(name, **arguments)


def _call(verb: F) -> F:
    """The verb as a call by its name."""

    @wraps(verb)
    async def call(calls: Calls, *args: Any, **options: Any) -> Any:
        return await _send(calls, verb.__name__, verb, *args, **options)

    return cast("F", call)


class Verbs(Calls):
    """`Backend`, one call per verb. The promises are in `everstep.backends.base`."""

    clock = _call(Backend.clock)
    identity = _call(Backend.identity)
    nodes = _call(Backend.nodes)
    ensure_generation = _call(Backend.ensure_generation)
    ensure_adopted = _call(Backend.ensure_adopted)
    observe = _call(Backend.observe)
    check = _call(Backend.check)
    check_storage = _call(Backend.check_storage)
    ensure_stopped = _call(Backend.ensure_stopped)
    ensure_healed = _call(Backend.ensure_healed)
    ensure_placed = _call(Backend.ensure_placed)
    ensure_standby = _call(Backend.ensure_standby)
    ensure_prechecked = _call(Backend.ensure_prechecked)
    ensure_prewarmed = _call(Backend.ensure_prewarmed)
    ensure_fenced = _call(Backend.ensure_fenced)
    checkpoints = _call(Backend.checkpoints)
    ensure_set_aside = _call(Backend.ensure_set_aside)
    ensure_started = _call(Backend.ensure_started)
    ensure_save_requested = _call(Backend.ensure_save_requested)
    ensure_dumped = _call(Backend.ensure_dumped)
    ensure_isolated = _call(Backend.ensure_isolated)
    ensure_released = _call(Backend.ensure_released)
    ensure_recorded = _call(Backend.ensure_recorded)
    ensure_gone = _call(Backend.ensure_gone)
    leftovers = _call(Backend.leftovers)

    @abstractmethod
    async def close(self) -> None: ...


class Remote:
    """The methods of another class, each as a call by its name."""

    def __init__(self, calls: Calls, owner: type, prefix: str) -> None:
        self._calls, self._owner, self._prefix = calls, owner, prefix

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(_send, self._calls, self._prefix + name, getattr(self._owner, name))
