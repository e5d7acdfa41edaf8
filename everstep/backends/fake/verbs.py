"""The protocol's verbs, and those for tests, as calls by name: one shape for here and for the socket.

`Calls` is all that differs: `backend.py` answers in this process, `client.py` asks the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from everstep.backends.base import NO_FOLDERS
from everstep.backends.fake.gates import Held, Side
from everstep.backends.fake.state import Effect
from everstep.core.facts import Fact
from everstep.core.world import (
    Checkpoint,
    FenceOrder,
    FenceState,
    GoneState,
    HealState,
    JobRef,
    Journal,
    Leftover,
    NodeView,
    Observation,
    PlaceOrder,
    PlaceState,
    PrecheckOrder,
    PrecheckState,
    StartOrder,
    StartState,
    StopOrder,
    StopState,
)

T = TypeVar("T")

ADMIN = "admin."
"""What the names of the calls for tests begin with."""


class Calls(ABC):
    """Carries a call to the cluster and brings its answer, of the type named first."""

    @abstractmethod
    async def call(self, answer: type[T], verb: str, /, **args: Any) -> T: ...


class Verbs(Calls):
    """`Backend`, one call per verb. The promises are in `everstep.backends.base`."""

    async def clock(self) -> float:
        return await self.call(float, "clock")

    async def identity(self) -> str:
        return await self.call(str, "identity")

    async def nodes(self) -> tuple[NodeView, ...]:
        return await self.call(tuple[NodeView, ...], "nodes")

    async def ensure_generation(
        self, job: JobRef, key: str, *, folders: Mapping[str, str] = NO_FOLDERS, above: int = 0
    ) -> int:
        told = dict(folders)
        return await self.call(
            int, "ensure_generation", job=job, key=key, folders=told, above=above
        )

    async def ensure_adopted(
        self, job: JobRef, *, generation: int, folders: Mapping[str, str] = NO_FOLDERS
    ) -> str:
        told = dict(folders)
        return await self.call(str, "ensure_adopted", job=job, generation=generation, folders=told)

    async def observe(
        self, job: JobRef, *, cursor: int, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        return await self.call(
            Observation, "observe", job=job, cursor=cursor, until=until, wait_s=wait_s
        )

    async def check(self, job: JobRef) -> tuple[Fact, ...]:
        return await self.call(tuple[Fact, ...], "check", job=job)

    async def ensure_stopped(self, order: StopOrder) -> StopState:
        return await self.call(StopState, "ensure_stopped", order=order)

    async def ensure_healed(
        self, job: JobRef, *, generation: int, node: str, device: int
    ) -> HealState:
        return await self.call(
            HealState, "ensure_healed", job=job, generation=generation, node=node, device=device
        )

    async def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        return await self.call(PlaceState, "ensure_placed", order=order)

    async def ensure_prechecked(self, order: PrecheckOrder) -> PrecheckState:
        return await self.call(PrecheckState, "ensure_prechecked", order=order)

    async def ensure_fenced(self, order: FenceOrder) -> FenceState:
        return await self.call(FenceState, "ensure_fenced", order=order)

    async def checkpoints(self, job: JobRef) -> tuple[Checkpoint, ...]:
        return await self.call(tuple[Checkpoint, ...], "checkpoints", job=job)

    async def ensure_started(self, order: StartOrder) -> StartState:
        return await self.call(StartState, "ensure_started", order=order)

    async def ensure_isolated(self, node: str, *, reason: str) -> None:
        await self.call(type(None), "ensure_isolated", node=node, reason=reason)

    async def ensure_released(self, node: str) -> None:
        await self.call(type(None), "ensure_released", node=node)

    async def ensure_recorded(self, journal: Journal) -> bool:
        return await self.call(bool, "ensure_recorded", journal=journal)

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        return await self.call(GoneState, "ensure_gone", job=job, grace_s=grace_s)

    async def leftovers(self) -> tuple[Leftover, ...]:
        return await self.call(tuple[Leftover, ...], "leftovers")


class Admin:
    """What a test does to a cluster, beside or behind the back of the engine."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def fault(self, line: str) -> None:
        """Let something go wrong, now or later; the lines are those of `faults.FAULTS`."""
        await self._calls.call(type(None), "admin.fault", line=line)

    async def advance(self, seconds: float) -> float:
        """Pass time by force, whoever holds the clock; the time afterwards."""
        return await self._calls.call(float, "admin.advance", seconds=seconds)

    async def effects(self) -> tuple[Effect, ...]:
        """What orders really changed in the world, each change once, in order."""
        return await self._calls.call(tuple[Effect, ...], "admin.effects")

    async def calls(self) -> dict[str, int]:
        """How often each verb was called."""
        return await self._calls.call(dict[str, int], "admin.calls")

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
        await self._calls.call(
            type(None), "admin.hold", verb=verb, nth=nth, when=when, job=job, late=late
        )

    async def wait_held(self, *, timeout_s: float = 30.0) -> Held:
        """The call that is held, as soon as there is one; a TimeoutError if there never is."""
        return await self._calls.call(Held, "admin.wait_held", timeout_s=timeout_s)

    async def release(self) -> None:
        """Let every held call go on and forget every hold and failure that was set."""
        await self._calls.call(type(None), "admin.release")

    async def fail(
        self, verb: str, *, nth: int = 1, when: Side = "before", job: str | None = None
    ) -> None:
        """Let the nth call of the verb be unavailable, before or after it was carried out."""
        await self._calls.call(type(None), "admin.fail", verb=verb, nth=nth, when=when, job=job)

    async def unavailable(self, on: bool = True) -> None:
        """Let every verb be unavailable until further notice."""
        await self._calls.call(type(None), "admin.unavailable", on=on)

    async def reset(self, *, nodes: int | None = None, devices: int | None = None) -> None:
        """A new cluster, as on its first day; the sizes stay as they are unless given."""
        await self._calls.call(type(None), "admin.reset", nodes=nodes, devices=devices)
