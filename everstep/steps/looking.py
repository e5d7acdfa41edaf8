"""What a step works with, and how a waiting one looks at the world.

Facts are collected, weightier ones end the step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from everstep.backends.base import Backend
from everstep.core.bounds import cut
from everstep.core.deciding.decision import (
    FaultCount,
    StepEnd,
    StepOrder,
    StepResult,
    Waited,
)
from everstep.core.deciding.playbook import row_for
from everstep.core.facts import Fact, is_late
from everstep.core.levels import FaultClass, Step
from everstep.core.recovering.quarantine import FaultNotes, QuarantineAnswer, Request
from everstep.core.world import Observation, PodRef, PodState, PodView

CANNOT_WORK = frozenset({PodState.LOST, PodState.ABSENT})
POLL_S = 1.0
"""Real seconds: so often a step looks where nothing is new."""
WAITED_S = 1.0
"""A shorter wait is not worth a line of its record."""
WAITS_KEPT, WAIT_MOST = 5, 120
WORTH_SAYING_S = 3.0
"""A fence or a start that took so long already says what it waits for."""


class QuarantineUnreachable(Exception):
    """The quarantine did not answer in time: the job isolates for itself and tells it later."""


class QuarantineClient(Protocol):
    """Where isolations are asked for."""

    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        """The quarantine's answer; `QuarantineUnreachable` if there is none within 10 s."""

    async def hand_over(self, cluster: str, request: Request) -> None:
        """Leave the request where the quarantine finds it whenever it is back; there is no answer."""

    async def note_faults(self, cluster: str, notes: FaultNotes) -> tuple[FaultCount, ...]:
        """How often each of these was seen over all jobs; `QuarantineUnreachable` as above."""


def _silent(*_details: object) -> None:
    return None


async def _untold(_what: str | None) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Everything a step may touch."""

    backend: Backend
    quarantine: QuarantineClient
    beat: Callable[..., None] = _silent  # called after every successful look at the world
    # What a step waits for, once it changes.
    waits: Callable[[str | None], Awaitable[None]] = _untold


# -- Looking --------------------------------------------------------------------------------------


class GivesWay(Exception):
    """A fact asks for a coarser reaction than the one under way."""


class ContainersGone(Exception):
    """Slots that the step cannot do without have no container any more."""

    def __init__(self, slots: tuple[int, ...]) -> None:
        super().__init__(f"no container in slots {slots}")
        self.slots = slots


@dataclass(slots=True, kw_only=True)
class Eyes:
    """One step's view of its job: where it looks from, and what it has seen."""

    context: StepContext
    order: StepOrder
    generation: int
    cursor: int = 0
    now: float = 0.0
    facts: list[Fact] = field(default_factory=list)
    nodes: frozenset[str] = frozenset()  # on which this plan has made pods
    needs: frozenset[int] = frozenset()  # slots that have to have a living container
    said: str | None = None  # what it waits for
    waits: dict[str, float] = field(default_factory=dict)  # what it waited for, and how long
    seen: Observation | None = None  # at the last look

    @classmethod
    def of(cls, context: StepContext, order: StepOrder) -> Eyes:
        return cls(
            context=context,
            order=order,
            generation=order.generation,
            cursor=order.cursor,
            now=order.since,
        )

    async def look(self, until: float | None = None) -> Observation:
        """Waits for the next change. Raises `GivesWay` or `ContainersGone` if it brought that."""
        seen = await self.context.backend.observe(
            self.order.plan.job, cursor=self.cursor, until=until, wait_s=POLL_S
        )
        self.context.beat(self.order.step, seen.now)
        self.cursor, self.now = seen.cursor, seen.now
        self.seen = seen
        self.nodes |= {pod.node for pod in self._made(seen)}
        fresh = [fact for fact in seen.facts if self._matters(fact)]
        self.facts += fresh
        if any(gives_way(fact, self.order.plan.gives_way_to) for fact in fresh):
            raise GivesWay
        if gone := self._gone(seen):
            raise ContainersGone(gone)
        return seen

    async def waits_for(self, what: str | None) -> None:
        """Said before the wait begins, for whoever asks why nothing happens. Once for each answer."""
        if what != self.said:
            self._count_wait()
            await self.context.waits(what)
            self.said = what

    async def found_done(self, what: str) -> None:
        """There is nothing to wait for: the step began long ago, so a try of it that was cut short waited."""
        now = await self.context.backend.clock()
        if self.said is None and now - self._began() >= WAITED_S:
            self.now, self.said = max(self.now, now), what

    def waited(self) -> tuple[Waited, ...]:
        """What took long, the longest first. A step that is repeated counts from its first try."""
        self._count_wait()
        long = [w for w in self.waits.items() if w[1] >= WAITED_S]
        longest = sorted(long, key=lambda w: -w[1])[:WAITS_KEPT]
        return tuple(Waited(what=cut(what, WAIT_MOST), s=round(s, 3)) for what, s in longest)

    def _count_wait(self) -> None:
        if self.said is not None:
            waited_s = max(self.now - self._began(), 0.0)
            self.waits[self.said] = self.waits.get(self.said, 0.0) + waited_s

    def _began(self) -> float:
        """When the present wait did: a step waits from its first try on."""
        return self.order.since + sum(self.waits.values())

    def _gone(self, seen: Observation) -> tuple[int, ...]:
        """The slots whose container is lost, or was removed behind our back."""
        gone = {pod.slot for pod in seen.pods if pod.state in CANNOT_WORK}
        if self.order.step is not Step.PLACE:  # which makes them
            gone |= self.needs - {pod.slot for pod in seen.pods}
        return tuple(sorted(gone & self.needs))

    async def made_by_now(self) -> dict[int, PodRef]:
        """The same, asked for without waiting and without hearing facts; a repeated step saw none made."""
        seen = await self.context.backend.observe(
            self.order.plan.job, cursor=self.cursor, until=0.0, wait_s=0.0
        )
        return self.new(seen)

    def new(self, seen: Observation) -> dict[int, PodRef]:
        """The pods that this plan has made."""
        return {pod.slot: PodRef(node=pod.node, uid=pod.uid) for pod in self._made(seen)}

    def _made(self, seen: Observation) -> list[PodView]:
        """Pods made by this plan: their nodes matter from the moment they were chosen."""
        living, newest = frozenset(self.order.living), (0, self.generation)
        return [pod for pod in seen.pods if pod.slot in living and pod.generation in newest]

    def _matters(self, fact: Fact) -> bool:
        """Not told before, not of replaced processes, not about a place this plan is leaving anyway."""
        if fact.id in self.order.plan.known or is_late(fact, generation=self.generation):
            return False
        if fact.family not in ("node", "device") or fact.node in self.nodes:
            return True
        plan = self.order.plan
        return plan.keeps_places and fact.node is not None and fact.node not in plan.leaves

    def done(self) -> StepResult:
        return self._result("done")

    def failed(self, cause: Fact) -> StepResult:
        return replace(self._result("failed"), cause=cause)

    def superseded(self) -> StepResult:
        made = {} if self.seen is None else self.new(self.seen)
        return replace(self._result("superseded"), pods=made)

    def _result(self, end: StepEnd) -> StepResult:
        return StepResult(
            end=end,
            now=self.now,
            cursor=self.cursor,
            generation=self.generation,
            living=self.order.living,
            facts=tuple(self.facts),
        )

    def cause(self, kind: str, message: str, **where: int | str | None) -> Fact:
        """The fact that says why this step failed. The generation is part of its identity."""
        slot, node, device = where.get("slot"), where.get("node"), where.get("device")
        return Fact(
            id=f"step/{self.order.plan.key}/{self.generation}/{kind}",
            kind=kind,
            at=self.now,
            node=node if isinstance(node, str) else None,
            slot=slot if isinstance(slot, int) else None,
            device=device if isinstance(device, int) else None,
            message=message,
        )


def gives_way(fact: Fact, classes: tuple[FaultClass, ...]) -> bool:
    row = row_for(fact)
    return row.cls in classes and not row.is_harmless


async def look_and_say(eyes: Eyes, until: float | None, what: str) -> None:
    """Waits for what usually comes at once; said only when it does not, for each word wakes the job."""
    said_at = eyes.order.since + WORTH_SAYING_S
    if eyes.now >= said_at:
        await eyes.waits_for(what)
        await eyes.look(until)
    else:
        await eyes.look(said_at if until is None else min(until, said_at))
