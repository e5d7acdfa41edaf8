"""The protocol's verbs, and those for tests, as calls by name: one shape for here and for the socket.

`Calls` is all that differs: `backend.py` answers in this process, `client.py` asks the server.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from everstep.backends.base import Backend
from everstep.backends.fake.gates import Held, Side
from everstep.backends.fake.simulated.state import Effect

F = TypeVar("F", bound=Callable[..., object])

ADMIN = "admin."
"""What the names of the calls for tests begin with."""


class Calls(ABC):
    """Carries a call to the cluster and brings its answer, of the type that the verb names."""

    @abstractmethod
    async def call(self, verb: str, /, **args: Any) -> Any: ...


def _call(verb: F) -> F:
    """The verb, as a call by its name."""
    signature = inspect.signature(verb)

    @wraps(verb)
    async def call(calls: Calls, *args: Any, **named: Any) -> Any:
        given = signature.bind(calls, *args, **named).arguments
        del given["self"]
        return await calls.call(verb.__name__, **given)

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
    ensure_stopped = _call(Backend.ensure_stopped)
    ensure_healed = _call(Backend.ensure_healed)
    ensure_placed = _call(Backend.ensure_placed)
    ensure_prechecked = _call(Backend.ensure_prechecked)
    ensure_fenced = _call(Backend.ensure_fenced)
    checkpoints = _call(Backend.checkpoints)
    ensure_started = _call(Backend.ensure_started)
    ensure_isolated = _call(Backend.ensure_isolated)
    ensure_released = _call(Backend.ensure_released)
    ensure_recorded = _call(Backend.ensure_recorded)
    ensure_gone = _call(Backend.ensure_gone)
    leftovers = _call(Backend.leftovers)

    @abstractmethod
    async def close(self) -> None: ...


class Admin:
    """What a test does to a cluster, beside or behind the back of the engine."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def fault(self, line: str) -> None:
        """Let something go wrong, now or later; the lines are those of `faults.FAULTS`."""
        await self._calls.call("admin.fault", line=line)

    async def advance(self, seconds: float) -> float:
        """Pass time by force, whoever holds the clock; the time afterwards."""
        said: float = await self._calls.call("admin.advance", seconds=seconds)
        return said

    async def effects(self) -> tuple[Effect, ...]:
        """What orders really changed in the world, each change once, in order."""
        said: tuple[Effect, ...] = await self._calls.call("admin.effects")
        return said

    async def recorded(self, job: str) -> tuple[str, ...]:
        """The lines of its run.log."""
        said: tuple[str, ...] = await self._calls.call("admin.recorded", job=job)
        return said

    async def calls(self) -> dict[str, int]:
        """How often each verb was called."""
        said: dict[str, int] = await self._calls.call("admin.calls")
        return said

    async def hold(
        self,
        verb: str,
        *,
        nth: int = 1,
        when: Side = "before",
        job: str | None = None,
        late: bool = False,
    ) -> None:
        """Hold the nth call of the verb from now on (`*`: of any but observe) until `release`.

        A call held `before` whose caller dies is dropped, or, if `late`, carried out at the release
        like an order that was on its way.
        """
        await self._calls.call("admin.hold", verb=verb, nth=nth, when=when, job=job, late=late)

    async def wait_held(self, *, timeout_s: float = 30.0) -> Held:
        """The call that is held, as soon as there is one; a TimeoutError if there never is."""
        said: Held = await self._calls.call("admin.wait_held", timeout_s=timeout_s)
        return said

    async def release(self) -> None:
        """Let every held call go on and forget every hold and failure that was set."""
        await self._calls.call("admin.release")

    async def fail(
        self, verb: str, *, nth: int = 1, when: Side = "before", job: str | None = None
    ) -> None:
        """Let the nth call of the verb be unavailable, before or after it was carried out."""
        await self._calls.call("admin.fail", verb=verb, nth=nth, when=when, job=job)

    async def unavailable(self, on: bool = True) -> None:
        """Let every verb be unavailable until further notice."""
        await self._calls.call("admin.unavailable", on=on)

    async def reset(self, *, nodes: int | None = None, devices: int | None = None) -> None:
        """A new cluster, as on its first day; the sizes stay as they are unless given."""
        await self._calls.call("admin.reset", nodes=nodes, devices=devices)
