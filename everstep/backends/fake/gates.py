"""Gates: a test sets one to catch a call, and to hold it while something is killed, or to fail it.

The server calls `meet` before and after it carries out a call, and `stop_at` if there is a gate. `before`:
the call is not carried out yet; `after`: it is, and only the answer is missing. `release` opens all gates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from everstep.core.errors import BackendUnavailable, EverstepError

Side = Literal["before", "after"]
ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCall:
    """A call that is being held."""

    verb: str
    job: str | None
    when: Side


@dataclass(slots=True, eq=False, kw_only=True)
class Gate:
    """Waits for the nth call of a verb (`*`: of any but observe), counted from when it was set."""

    verb: str
    nth: int  # counts down with each such call
    when: Side
    job: str | None = None  # None: of any job
    fails: bool = False
    is_late: bool = False  # a call whose caller died while held is carried out at the release
    holding: HeldCall | None = None
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def concerns(self, verb: str, job: str | None) -> bool:
        is_verb = self.verb == verb or (self.verb == ANY and verb != "observe")
        return is_verb and self.job in (None, job)


class Gates:
    """All gates that are set."""

    def __init__(self) -> None:
        self._set: list[Gate] = []
        self._holding: list[Gate] = []
        self._late: list[Callable[[], object]] = []
        self._caught = asyncio.Event()

    def set(self, gate: Gate) -> None:
        self._set.append(gate)

    def meet(self, verb: str, job: str | None) -> Gate | None:
        """Count the call at every gate; return the gate that catches it, if any."""
        met: Gate | None = None
        for gate in tuple(self._set):
            if gate.concerns(verb, job):
                gate.nth -= 1
                if gate.nth <= 0 and met is None:
                    self._set.remove(gate)
                    met = gate
        return met

    async def stop_at(self, gate: Gate, held: HeldCall, run: Callable[[], object]) -> None:
        """Fail the call, or hold it until the release. `run` is what it would do."""
        if not gate.fails:
            await self._hold(gate, held, run)
        if gate.fails:
            raise BackendUnavailable(f"the fake cluster was asked to fail {held.verb}")

    async def _hold(self, gate: Gate, held: HeldCall, run: Callable[[], object]) -> None:
        gate.holding = held
        self._holding.append(gate)
        self._caught.set()
        try:
            await gate.opened.wait()
        except asyncio.CancelledError:
            if gate.is_late and gate.when == "before":
                self._late.append(run)
            raise
        finally:
            if gate in self._holding:
                self._holding.remove(gate)

    async def wait_held(self, timeout_s: float) -> HeldCall:
        """Wait until a call is held, and return it."""
        async with asyncio.timeout(timeout_s):
            while not self._holding:
                self._caught.clear()
                await self._caught.wait()
        call = self._holding[0].holding
        assert call is not None
        return call

    def release(self) -> None:
        """Continue the calls that are held, remove every gate, and carry out late calls."""
        for gate in self._holding:
            gate.opened.set()
        self._set.clear()
        late, self._late = self._late, []
        for run in late:
            try:
                run()
            except EverstepError:
                continue  # refused, as a late order should be; no caller waits for the answer

    def break_off(self) -> None:
        """Fail the calls that are held, and drop gates and late calls."""
        for gate in self._holding:
            gate.fails = True
        self._late.clear()
        self.release()
