"""The protocol over a fake cluster in this process: waiting, gates, and the calls for tests.

A job that works holds the virtual clock (`Holders`): every call counts as work, and time passes once all jobs
wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from everstep.backends.fake.cluster import FakeCluster
from everstep.backends.fake.faults import inject, parse_fault
from everstep.backends.fake.gates import Gate, Gates, HeldCall, Side
from everstep.backends.fake.settings import FakeSettings
from everstep.backends.fake.simulated.holders import Holders, Waiter
from everstep.backends.fake.simulated.state import Effect
from everstep.backends.fake.verbs import ADMIN, Verbs
from everstep.core.errors import BackendUnavailable
from everstep.core.world import JobRef


class FakeBackend(Verbs):
    """A cluster of its own in this process, for simulations and fast tests. `FakeServer` serves one."""

    def __init__(
        self,
        settings: FakeSettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admin = Admin(self)
        self._monotonic = monotonic
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
            return await getattr(self.admin, verb.removeprefix(ADMIN))(**args)
        job = job_of(args)
        self.calls[verb] += 1
        if job is not None:
            self.holders.note_call(job)
        try:
            return await self._through_gate(verb, job, args)
        finally:
            if job is not None:
                self.holders.note_call(job)

    async def close(self) -> None:
        """Nothing to let go of: the cluster lives as long as this object."""

    async def _through_gate(self, verb: str, job: str | None, args: Mapping[str, Any]) -> object:
        gate = self.gates.meet(verb, job)
        if gate is None:
            return await self._carry_out(verb, args)
        held = HeldCall(verb=verb, job=job, when=gate.when)
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
            self.cluster.refuse_strange(ref)
        return await self._observe(**args) if verb == "observe" else self._order(verb, args)

    def _order(self, verb: str, args: Mapping[str, Any]) -> object:
        try:
            with self.holders.ordering(job_of(args)):
                return getattr(self.cluster, verb)(**args)
        finally:
            self.holders.let_time_pass()

    async def _observe(
        self, job: JobRef, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> object:
        version = int(cursor or 0)
        await self.holders.wait(Waiter(job=job.id, cursor=version, until=until), wait_s)
        observation = self.cluster.observation(job.id, version)
        self.holders.note_shown(job.id, int(observation.cursor))
        return observation


def job_of(args: Mapping[str, Any]) -> str | None:
    """The ID of the job that a call is about."""
    ref = ref_of(args)
    return None if ref is None else ref.id


def ref_of(args: Mapping[str, Any]) -> JobRef | None:
    ref = args.get("job") or getattr(args.get("order"), "job", None)
    return ref if isinstance(ref, JobRef) else None


class Admin:
    """What a test does to a cluster, beside or behind the back of the engine."""

    def __init__(self, fake: FakeBackend) -> None:
        self._fake = fake

    async def fault(self, line: str) -> None:
        """Let something go wrong, now or later; the lines are those of `faults.FAULTS`."""
        inject(self._fake.cluster.state, parse_fault(line))
        self._fake.holders.let_time_pass()

    async def advance(self, seconds: float) -> float:
        """Pass time even if jobs hold the clock. Returns the time afterwards."""
        clock = self._fake.cluster.state.time
        clock.pass_to(round(clock.now + seconds, 6))
        self._fake.holders.let_time_pass()
        return clock.now

    async def effects(self) -> tuple[Effect, ...]:
        """What orders really changed in the world, each change once, in order."""
        return self._fake.cluster.state.effects

    async def recorded(self, job: str) -> tuple[str, ...]:
        """The lines of its run.log."""
        return self._fake.cluster.state.storage.recorded(job)

    async def calls(self) -> dict[str, int]:
        """The number of calls of each verb."""
        return dict(self._fake.calls)

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
        self._fake.gates.set(Gate(verb=verb, nth=nth, when=when, job=job, is_late=late))

    async def wait_held(self, *, timeout_s: float = 30.0) -> HeldCall:
        """The call that is held, as soon as there is one; a TimeoutError if there never is."""
        return await self._fake.gates.wait_held(timeout_s)

    async def release(self) -> None:
        """Let every held call go on and forget every hold and failure that was set."""
        self._fake.gates.release()
        self._fake.holders.let_time_pass()

    async def fail(
        self, verb: str, *, nth: int = 1, when: Side = "before", job: str | None = None
    ) -> None:
        """Let the nth call of the verb be unavailable, before or after it was carried out."""
        self._fake.gates.set(Gate(verb=verb, nth=nth, when=when, job=job, fails=True))

    async def unavailable(self, on: bool = True) -> None:
        """Let every verb be unavailable until further notice."""
        self._fake.unavailable = None
        if on:
            self._fake.unavailable = BackendUnavailable("the fake cluster was made unavailable")
            self._fake.holders.fail_all(self._fake.unavailable)

    async def reset(self, *, nodes: int | None = None, devices: int | None = None) -> None:
        """A new cluster, as on its first day; the sizes stay as they are unless given."""
        old = self._fake.cluster.settings
        self._fake.gates.break_off()
        self._fake.holders.fail_all(BackendUnavailable("the fake cluster was restarted"))
        self._fake.build(
            replace(
                old,
                nodes=old.nodes if nodes is None else nodes,
                devices=old.devices if devices is None else devices,
            )
        )
