"""A job's whole life without Temporal: the same machine, driven by direct calls.

For tests of the rules, for `simulate`, for a month in seconds. There is no second copy of anything:
the lifecycle, the decisions and the steps are those of the workflows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from everstep.backends.base import Backend
from everstep.chronicle.chronicle import Chronicle
from everstep.chronicle.fold import folded
from everstep.core.counting.occurrences import FaultCount
from everstep.core.counting.reports import count_order
from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision import Decision, Outcome, Plan
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.errors import LifecycleBug
from everstep.core.loop import commands, lifecycle, next_actions, operators
from everstep.core.loop.next_actions import (
    Begun,
    Clear,
    Cleared,
    Decide,
    Decided,
    End,
    Event,
    NextPhase,
    Observe,
    PlanEnded,
    RunPlan,
    WatchAction,
    Watched,
)
from everstep.core.recovering import quarantine, recovery
from everstep.core.recovering.quarantine import DeviceReport, Quarantine, QuarantineAnswer, Request
from everstep.core.spec import JobSpec
from everstep.core.state import JobState, Wait, is_applied
from everstep.core.world import JobRef
from everstep.faults.meanings import informed
from everstep.steps.counting import (
    count_faults,
)
from everstep.steps.perform import hand_over, perform
from everstep.steps.step_run import QuarantineClient, QuarantineUnreachable, StepContext
from everstep.steps.watch import observe_once, watch


@dataclass(slots=True, kw_only=True)
class QuarantineInMemory(QuarantineClient):
    """A quarantine in memory, one per cluster."""

    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    is_reachable: bool = True
    backend: Backend | None = None  # where isolations are marked; the simulation's own

    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        if not self.is_reachable:
            raise QuarantineUnreachable
        book = self.quarantines.get(cluster, Quarantine(cluster=cluster))
        self.quarantines[cluster], answer = quarantine.isolate(book, request)
        if answer.verdict == "isolated" and self.backend is not None:
            await self.backend.ensure_isolated(request.node, reason=request.reason)
        return answer

    async def hand_over(self, cluster: str, request: Request) -> None:
        book = self.quarantines.get(cluster, Quarantine(cluster=cluster))
        self.quarantines[cluster], _ = quarantine.isolate(book, request)

    async def note_faults(self, cluster: str, report: DeviceReport) -> tuple[FaultCount, ...]:
        if not self.is_reachable:
            raise QuarantineUnreachable
        book = self.quarantines.get(cluster, Quarantine(cluster=cluster))
        after, counts = quarantine.take_report(book, report)
        self.quarantines[cluster] = after
        if self.backend is not None:
            for name in quarantine.changed_isolations(book, after):
                if (entry := after.nodes.get(name)) is not None:
                    await self.backend.ensure_isolated(name, reason=entry.reason)
                else:
                    await self.backend.ensure_released(name)
        return counts.counts

    async def release(self, cluster: str, node: str) -> None:
        if cluster in self.quarantines:
            self.quarantines[cluster], _ = quarantine.release(self.quarantines[cluster], node)
        if self.backend is not None:
            await self.backend.ensure_released(node)


@dataclass(slots=True, kw_only=True)
class Simulation:
    """One job on a backend, without Temporal. `on_action` gets every state with the action that follows."""

    backend: Backend
    spec: JobSpec
    job: JobRef = field(default_factory=lambda: JobRef(id="job", run="run"))
    quarantine: QuarantineInMemory = field(default_factory=QuarantineInMemory)
    on_action: Callable[[JobState, next_actions.Action], None] = lambda _state, _action: None
    decide: Callable[[DecisionInput], Decision] = decide  # another one only to compare with
    state: JobState = field(init=False)
    chronicle: Chronicle = field(init=False, default_factory=Chronicle)
    leave: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.quarantine.backend = self.quarantine.backend or self.backend
        self.state = JobState(job=self.job, spec=self.spec, phase_index=self.spec.first_phase)

    def tell(self, name: str, /, **args: Any) -> None:
        """Send an operator's command; it is accepted or refused like an update of the workflow."""
        command = commands.accept(self.state, name, args)
        command_id = args.get("id")
        if command_id is not None and is_applied(self.state, command_id):
            return
        self.state = operators.commanded(self.state, command)
        if operators.interrupts(self.state):
            self.leave.set()

    async def run(self) -> End:
        """Run the job to its end."""
        self.state = replace(self.state, now=await self.backend.clock())
        event: Event = Begun()
        while True:
            self.state, action, events = lifecycle.advance(self.state, event)
            self.chronicle = folded(self.chronicle, events)
            self.on_action(self.state, action)
            if isinstance(action, End):
                return action
            self.leave.clear()
            event = await self._do(action)

    async def _do(self, action: next_actions.Action) -> Event:
        match action:
            case RunPlan(plan=plan):
                return PlanEnded(outcome=await carry_out(self._context(), plan))
            case WatchAction(order=order):
                return Watched(report=await watch(self._context(), order, self.leave))
            case Observe(order=order):
                return Watched(report=await observe_once(self._context(), order))
            case Decide(inputs=inputs):
                to_count = count_order(
                    inputs.policy, inputs.facts, inputs.occurrences, spec=self.spec, job=self.job.id
                )
                if to_count is not None:
                    inputs = replace(inputs, counts=await count_faults(self._context(), to_count))
                return Decided(decision=self.decide(informed(inputs)))
            case Clear(job=job, grace_s=grace_s):
                return await self._clear(job, grace_s)
            case NextPhase():
                self.state = lifecycle.enter_phase(self.state, self.state.phase_index + 1)
                return Begun()
            case End():
                raise LifecycleBug("a job that ended does nothing")

    async def _clear(self, job: JobRef, grace_s: float) -> Cleared:
        deferred, context = self.state.deferred, self._context()
        isolated = await hand_over(context, job, self.spec.cluster, deferred)
        cursor = self.state.cursor
        while not (gone_state := await self.backend.ensure_gone(job, grace_s=grace_s)).done:
            cursor = (await self.backend.observe(job, cursor=cursor)).cursor
        return Cleared(isolated=isolated, saved=gone_state.saved)

    def _context(self) -> StepContext:
        return StepContext(
            backend=self.backend, quarantine=self.quarantine, send_wait=self._note_wait
        )

    async def _note_wait(self, wait: Wait | None) -> None:
        self.state = lifecycle.waits(self.state, wait)


async def carry_out(context: StepContext, plan: Plan) -> Outcome:
    """Perform the steps of a plan, one after the other, until it has an outcome."""
    progress = recovery.begin(plan)
    while True:
        order = recovery.next_step(progress)
        if isinstance(order, Outcome):
            return order
        following = recovery.after(progress, await perform(context, order))
        if isinstance(following, Outcome):
            return following
        progress = following
