"""The context of a step, and how a waiting step observes its job.

It collects facts; a more severe one ends the step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from everstep.backends.base import Backend
from everstep.core.bounds import cut
from everstep.core.counting.occurrences import FaultCount
from everstep.core.deciding.decision import StepEnd, StepOrder, StepResult, Waited
from everstep.core.deciding.playbook import row_for
from everstep.core.facts import Fact, is_late
from everstep.core.levels import FaultClass, Step
from everstep.core.recovering.quarantine import DeviceReport, QuarantineAnswer, Request
from everstep.core.state import Wait
from everstep.core.waits import WaitCause
from everstep.core.world import Observation, PodRef, PodState, PodView

ENDED = frozenset({PodState.LOST, PodState.ABSENT})
CANNOT_WORK = ENDED | {PodState.LEAVING}
"""Pods in which no rank is started any more."""
POLL_S = 1.0
"""Real seconds between two observations while nothing is new."""
WAITED_S = 1.0
"""A shorter wait is not recorded."""
WAITS_KEPT, WAIT_MOST = 5, 120
"""Waits that a result has, the longest, and the characters of each."""
ANSWER_S = 60.0
"""Seconds that a step which begins late waits for an answer, though its limit is over."""
REPORT_AFTER_S = 3.0
"""A fence or a start that takes longer reports what it waits for."""


class QuarantineUnreachable(Exception):
    """The quarantine did not answer in time: the job isolates by itself and reports it later."""


class QuarantineClient(Protocol):
    """Requests isolations from the quarantine."""

    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        """The quarantine's answer; `QuarantineUnreachable` if there is none within 10 s."""

    async def hand_over(self, cluster: str, request: Request) -> None:
        """Leave the request where the quarantine finds it whenever it is back; there is no answer."""

    async def note_faults(self, cluster: str, report: DeviceReport) -> tuple[FaultCount, ...]:
        """Count these faults and return their counts over all jobs. Raises `QuarantineUnreachable`."""


def _no_beat(*_details: object) -> None:
    return None


async def _no_report(_wait: Wait | None) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Everything a step may touch."""

    backend: Backend
    quarantine: QuarantineClient
    beat: Callable[..., None] = _no_beat  # called after every observation
    monitored_jobs: Callable[[], int] = lambda: 1  # by this worker
    # Called with the current wait of the step when that changes; None: it does not wait.
    send_wait: Callable[[Wait | None], Awaitable[None]] = _no_report

    @property
    def has_heartbeat(self) -> bool:
        """Whether `beat` goes anywhere: what it shows takes time to gather."""
        return self.beat is not _no_beat


# -- Looking --------------------------------------------------------------------------------------


class Superseded(Exception):
    """A fact needs a coarser reaction than the one under way."""


class SlotsSilent(Exception):
    """Slots that the step needs have not answered for as long as a start may take."""

    def __init__(self, slots: tuple[int, ...], limit_s: float) -> None:
        super().__init__(f"slot {slots[0]} has not answered for {limit_s:g} s")
        self.slots = slots


class ContainersGone(Exception):
    """Slots that the step needs have no container any more."""

    def __init__(self, slots: tuple[int, ...]) -> None:
        super().__init__(f"no container in slots {slots}")
        self.slots = slots


@dataclass(slots=True, kw_only=True)
class StepRun:
    """A step being carried out: its cursor, the facts it collected, and what it waits for."""

    context: StepContext
    order: StepOrder
    generation: int
    cursor: str = ""
    now: float = 0.0
    facts: list[Fact] = field(default_factory=list)
    nodes: frozenset[str] = frozenset()  # where this plan has created pods
    needs: frozenset[int] = frozenset()  # slots that must have a living container
    wait: WaitCause | None = None  # the current one; None: it does not wait
    past_waits: dict[WaitCause, float] = field(default_factory=dict)
    """The seconds of earlier waits, by what was waited for."""
    observation: Observation | None = None  # the newest
    first_request_at: float | None = None  # the result of `requested_at`, once that was called

    @classmethod
    def of(cls, context: StepContext, order: StepOrder) -> StepRun:
        return cls(
            context=context,
            order=order,
            generation=order.generation,
            cursor=order.cursor,
            now=order.since,
        )

    async def requested_at(self) -> float:
        """When this try sent its first request: a limit of an answer counts from here.

        After a time without a worker the order is old, but no agent has it yet.
        """
        if self.first_request_at is None:
            self.first_request_at = await self.context.backend.clock()
        return self.first_request_at

    async def deadline(self, limit_s: float) -> float:
        """When an answer is too late: this long after the order, however often its worker was killed.

        A step that begins late waits for its answer a minute all the same, or as long as the limit is.
        """
        return max(self.order.since + limit_s, await self.requested_at() + min(limit_s, ANSWER_S))

    async def observe(self, until: float | None = None) -> Observation:
        """Wait for the next change. Raises `Superseded` or `ContainersGone` if it shows either."""
        observation = await self.context.backend.observe(
            self.order.plan.job, cursor=self.cursor, until=until, wait_s=POLL_S
        )
        self.context.beat(self.order.step, observation.now)
        self.cursor, self.now = observation.cursor, observation.now
        self.observation = observation
        self.nodes |= {pod.node for pod in self._created_views(observation)}
        current = map(self._current, observation.facts)
        fresh = [fact for fact in current if self._matters(fact)]
        self.facts += fresh
        if any(gives_way(fact, self.order.plan.remedy.gives_way_to) for fact in fresh):
            raise Superseded
        if lost_slots := self._lost_slots(observation):
            raise ContainersGone(lost_slots)
        return observation

    async def observe_answers(self, until: float | None = None) -> None:
        """Wait for the next change, as `look`. Raises `SlotsSilent` with slots that are silent for too long.

        While more than half of the needed ones are, the way to them may be broken: then there is no limit.
        """
        limit_s, silent = self.order.plan.phase.limits.start_s, self._silent_since()
        if silent and 2 * len(silent) <= len(self.needs):
            requested_at = await self.requested_at()
            deadlines = {slot: max(since, requested_at) + limit_s for slot, since in silent.items()}
            if late := tuple(sorted(slot for slot, at in deadlines.items() if self.now >= at)):
                raise SlotsSilent(late, limit_s)
            next_at = min(deadlines.values())
            until = next_at if until is None else min(until, next_at)
        await self.observe(until)

    def _silent_since(self) -> dict[int, float]:
        """Since when each needed slot is silent, of those that are."""
        pods = self.observation.pods if self.observation is not None else ()
        return {
            pod.slot: pod.silent_since
            for pod in pods
            if pod.slot in self.needs and pod.silent_since is not None
        }

    async def report_wait(self, cause: WaitCause | None, *, until: float | None = None) -> None:
        """Report what the step waits for, before the wait and only when it changed.

        The step fails at `until` if that has not come.
        """
        if cause != self.wait:
            self._count_current_wait()
            since = max(self.now, self.order.since)
            wait = None if cause is None else Wait.of(cause, since=since, until=until)
            await self.context.send_wait(wait)
            self.wait = cause

    async def resume_wait(self, cause: WaitCause) -> None:
        """Count a wait that this try of the step finds over: an earlier try had it.

        It lasted from the step's begin until now. Does nothing if that was short or this try waits itself.
        """
        if self.wait is not None:
            return
        now = await self.context.backend.clock()
        if now - self._wait_began() >= WAITED_S:
            self.now, self.wait = max(self.now, now), cause

    def long_waits(self) -> tuple[Waited, ...]:
        """The longest waits of the step, the longest first. It ends the current one."""
        self._count_current_wait()
        waits = [w for w in self.past_waits.items() if w[1] >= WAITED_S]
        longest = sorted(waits, key=lambda w: -w[1])[:WAITS_KEPT]
        return tuple(
            Waited(what=cut(cause.sentence, WAIT_MOST), s=round(s, 3), reason=cause.reason)
            for cause, s in longest
        )

    def _count_current_wait(self) -> None:
        """Add the current wait, up to now, to the past ones."""
        if self.wait is not None:
            wait_s = max(self.now - self._wait_began(), 0.0)
            self.past_waits[self.wait] = self.past_waits.get(self.wait, 0.0) + wait_s

    def _wait_began(self) -> float:
        """When the current wait began.

        Waits follow each other without a gap: each began where the ones before it ended, the first with the
        first try of the step.
        """
        return self.order.since + sum(self.past_waits.values())

    def _lost_slots(self, observation: Observation) -> tuple[int, ...]:
        """Needed slots whose container is lost or was removed by others."""
        lost_slots = {pod.slot for pod in observation.pods if pod.state in CANNOT_WORK}
        if self.order.step is not Step.PLACE:  # it creates them
            lost_slots |= self.needs - {pod.slot for pod in observation.pods}
        return tuple(sorted(lost_slots & self.needs))

    async def pods_now(self) -> dict[int, PodRef]:
        """The pods that this plan has created, observed now and without taking facts."""
        observation = await self.context.backend.observe(
            self.order.plan.job, cursor=self.cursor, until=0.0, wait_s=0.0
        )
        return self._created_pods(observation)

    def _created_pods(self, observation: Observation) -> dict[int, PodRef]:
        """The pods that this plan has created, by slot."""
        views = self._created_views(observation)
        return {pod.slot: PodRef(node=pod.node, uid=pod.uid) for pod in views}

    def _created_views(self, observation: Observation) -> list[PodView]:
        """Views of the pods that this plan has created; their nodes matter as soon as they are chosen."""
        if self.order.step is Step.STANDBY:
            return []  # the observed pods are those that the job is going to leave
        active = frozenset(self.order.active)
        # In a new pod no process was started yet (0), or one of this generation.
        generations = (0, self.generation)
        return [
            pod for pod in observation.pods if pod.slot in active and pod.generation in generations
        ]

    def _current(self, fact: Fact) -> Fact:
        """The fact, of this generation if it is the end of a pod that this plan keeps.

        Such an end has the generation of the ranks that ran in the pod, and new ones were to run there.
        """
        plan = self.order.plan
        is_kept = fact.slot in self.order.active and fact.slot not in plan.remedy.recreate
        if fact.family == "pod" and is_kept and fact.at >= plan.since:
            return replace(fact, generation=self.generation)
        return fact

    def _matters(self, fact: Fact) -> bool:
        """Whether the fact is new, of current processes, and not about a node that this plan leaves."""
        if fact.id in self.order.plan.known_fact_ids or is_late(fact, generation=self.generation):
            return False
        if fact.family not in ("node", "device") or fact.node in self.nodes:
            return True
        plan = self.order.plan
        return plan.keeps_places and fact.node is not None and fact.node not in plan.left_nodes

    def done(self) -> StepResult:
        return self._result("done")

    def failed(self, cause: Fact) -> StepResult:
        return replace(self._result("failed"), cause=cause)

    def superseded(self) -> StepResult:
        pods = {} if self.observation is None else self._created_pods(self.observation)
        return replace(self._result("superseded"), pods=pods)

    def _result(self, end: StepEnd) -> StepResult:
        return StepResult(
            end=end,
            now=self.now,
            cursor=self.cursor,
            generation=self.generation,
            active=self.order.active,
            facts=tuple(self.facts),
        )

    def cause(self, kind: str, message: str, **where: int | str | None) -> Fact:
        """The fact with the reason why this step failed. The generation is part of its identity."""
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


async def observe_then_report(
    step: StepRun, until: float | None, cause: WaitCause, *, deadline: float | None = None
) -> None:
    """Wait for something that usually comes at once, and report the wait only if it does not.

    Each report wakes the job's workflow. The step looks again at `until` and fails at `deadline`; without one
    it waits for answers as `observe_answers` does.
    """
    look = step.observe_answers if deadline is None else step.observe
    report_at = step.order.since + REPORT_AFTER_S
    if step.now >= report_at:
        await step.report_wait(cause, until=deadline)
        await look(until)
    else:
        await look(report_at if until is None else min(until, report_at))
