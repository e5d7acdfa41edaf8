"""The protocol over a fake cluster in this process: waiting, gates, and the calls for tests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from everstep.backends.fake.cluster import FakeCluster
from everstep.backends.fake.faults import inject, parse_fault
from everstep.backends.fake.gates import Gate, Gates, Held, Side
from everstep.backends.fake.settings import FakeSettings
from everstep.backends.fake.simulated.holders import Holders, Waiter
from everstep.backends.fake.simulated.state import Effect
from everstep.backends.fake.verbs import ADMIN, Admin, Verbs
from everstep.core.errors import BackendUnavailable
from everstep.core.world import JobRef


class FakeBackend(Verbs):
    """A cluster of its own in this process, for simulations and fast tests; the server's heart."""

    def __init__(
        self,
        settings: FakeSettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admin = Admin(self)
        self._monotonic = monotonic
        self._desk = Desk(self)
        self.build(settings or FakeSettings())

    def build(self, settings: FakeSettings) -> None:
        """A new cluster, as on its first day."""
        self.cluster = FakeCluster(settings)
        self.holders = Holders(self.cluster, self._monotonic)
        self.gates = Gates()
        self.calls: Counter[str] = Counter()
        self.unavailable: BackendUnavailable | None = None

    async def call(self, verb: str, /, **args: Any) -> Any:
        if verb.startswith(ADMIN):
            return await self._desk.call(verb, args)
        job = job_of(args)
        self.calls[verb] += 1
        if job is not None:
            self.holders.heard_of(job)
        try:
            return await self._through_gate(verb, job, args)
        finally:
            if job is not None:
                self.holders.heard_of(job)

    async def close(self) -> None:
        """Nothing to let go of: the cluster lives as long as this object."""

    async def _through_gate(self, verb: str, job: str | None, args: Mapping[str, Any]) -> object:
        gate = self.gates.meet(verb, job)
        if gate is None:
            return await self._carry_out(verb, args)
        held = Held(verb=verb, job=job, when=gate.when)
        order = partial(self._order, verb, args)
        if gate.when == "before":
            await self.gates.stop_at(gate, held, order)
            return await self._carry_out(verb, args)
        result = await self._carry_out(verb, args)
        await self.gates.stop_at(gate, held, order)
        return result

    async def _carry_out(self, verb: str, args: Mapping[str, Any]) -> object:
        if self.unavailable is not None:
            raise self.unavailable
        ref = ref_of(args)
        if ref is not None and verb != "ensure_adopted":
            self.cluster.recognise(ref)
        return await self._observe(**args) if verb == "observe" else self._order(verb, args)

    def _order(self, verb: str, args: Mapping[str, Any]) -> object:
        try:
            return getattr(self.cluster, verb)(**args)
        finally:
            self.holders.turn()

    async def _observe(
        self, job: JobRef, cursor: int, until: float | None = None, wait_s: float = 1.0
    ) -> object:
        await self.holders.wait(Waiter(job=job.id, cursor=cursor, until=until), wait_s)
        return self.cluster.look(job.id, cursor)


def job_of(args: Mapping[str, Any]) -> str | None:
    """The ID of the job that a call speaks of."""
    ref = ref_of(args)
    return None if ref is None else ref.id


def ref_of(args: Mapping[str, Any]) -> JobRef | None:
    ref = args.get("job") or getattr(args.get("order"), "job", None)
    return ref if isinstance(ref, JobRef) else None


class Desk:
    """Carries out what `Admin` asks for, each by its name there."""

    def __init__(self, fake: FakeBackend) -> None:
        self._fake = fake

    async def call(self, verb: str, args: Mapping[str, Any]) -> object:
        result = getattr(self, verb.removeprefix(ADMIN))(**args)
        if isinstance(result, Awaitable):
            return await result
        self._fake.holders.turn()
        return result

    def fault(self, line: str) -> None:
        inject(self._fake.cluster.state, parse_fault(line))

    def advance(self, seconds: float) -> float:
        clock = self._fake.cluster.state.time
        clock.pass_to(round(clock.now + seconds, 6))
        return clock.now

    def effects(self) -> tuple[Effect, ...]:
        return self._fake.cluster.state.effects

    def recorded(self, job: str) -> tuple[str, ...]:
        return self._fake.cluster.state.storage.recorded(job)

    def calls(self) -> dict[str, int]:
        return dict(self._fake.calls)

    def hold(self, verb: str, nth: int, when: Side, job: str | None, late: bool) -> None:
        self._fake.gates.set(Gate(verb=verb, nth=nth, when=when, job=job, is_late=late))

    async def wait_held(self, timeout_s: float) -> Held:
        return await self._fake.gates.held(timeout_s)

    def release(self) -> None:
        self._fake.gates.release()

    def fail(self, verb: str, nth: int, when: Side, job: str | None) -> None:
        self._fake.gates.set(Gate(verb=verb, nth=nth, when=when, job=job, fails=True))

    def unavailable(self, on: bool) -> None:
        self._fake.unavailable = None
        if on:
            self._fake.unavailable = BackendUnavailable("the fake cluster was made unavailable")
            self._fake.holders.fail_all(self._fake.unavailable)

    def reset(self, nodes: int | None, devices: int | None) -> None:
        old = self._fake.cluster.settings
        self._fake.gates.break_off()
        self._fake.holders.fail_all(BackendUnavailable("the fake cluster was built anew"))
        self._fake.build(
            replace(
                old,
                nodes=old.nodes if nodes is None else nodes,
                devices=old.devices if devices is None else devices,
            )
        )
