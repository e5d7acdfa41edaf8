"""Plays a scenario without Temporal: the simulation, with an operator who may interrupt it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.backends.fault_lines import When
from everstep.chronicle import views
from everstep.core.deciding.decision import Decision
from everstep.core.errors import CommandRejected
from everstep.core.loop import commands, next_actions, operators
from everstep.core.loop.next_actions import Decide, Decided, Event, PlanEnded, RunPlan
from everstep.core.spec import JobSpec, Policy
from everstep.core.state import Mode
from everstep.core.world import JobRef, Observation
from everstep.dialects import responses
from everstep.dialects.registry import compile_document
from everstep.simulation import Simulation
from tests.support.playing.scenario import JOB, Cue, Note, Played, Scenario
from tests.support.playing.transcript import status_line

ANSWERED_WITHIN_S = 0.01
POLICY = TypeAdapter(Policy)


class PromptBackend(FakeBackend):
    """A fake cluster with early answers, so that a waiting job soon sees an operator's command."""

    async def observe(
        self, job: JobRef, *, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        wait_s = min(wait_s, ANSWERED_WITHIN_S)
        return await super().observe(job, cursor=cursor, until=until, wait_s=wait_s)


@dataclass(slots=True, kw_only=True)
class Interruptible(Simulation):
    """The simulation, as far as a workflow differs: plans end early, outcomes are lost."""

    forgotten: tuple[int, ...] = ()
    decisions: list[Decision] = field(default_factory=list)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    acted: asyncio.Event = field(default_factory=asyncio.Event)

    def command(self, name: str, args: Mapping[str, Any]) -> None:
        """An operator's command, accepted or refused as the workflow's update does."""
        self.state = operators.commanded(self.state, commands.accept(self.state, name, args))
        if operators.interrupts(self.state):
            self.leave.set()

    async def _do(self, action: next_actions.Action) -> Event:
        self.acted.set()
        if isinstance(action, RunPlan):
            return await self._run_plan(action)
        event = await Simulation._do(self, action)
        if isinstance(action, Decide) and isinstance(event, Decided):
            self.decisions.append(event.decision)
        return event

    async def _run_plan(self, action: RunPlan) -> Event:
        self.lost.clear()
        work = asyncio.create_task(Simulation._do(self, action))
        ends = [asyncio.create_task(event.wait()) for event in (self.leave, self.lost)]
        await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
        is_whole = work.done() and action.plan.n not in self.forgotten
        for task in (work, *ends):
            task.cancel()
        await asyncio.gather(work, *ends, return_exceptions=True)
        if is_whole:
            return work.result()
        return PlanEnded(outcome=None, interrupted=operators.interrupts(self.state))


class Simulated:
    """The driver."""

    def __init__(self) -> None:
        self.backend = PromptBackend()

    async def set_up(self, scenario: Scenario) -> None:
        self.backend.build(FakeSettings(nodes=scenario.nodes, devices=scenario.devices))
        self.simulation = Interruptible(
            backend=self.backend,
            spec=spec_of(scenario),
            job=JobRef(id=JOB, run="run"),
            forgotten=scenario.forgotten,
        )

    async def fault(self, line: str) -> None:
        await self.backend.admin.fault(line)

    async def run(self) -> None:
        await self.simulation.run()

    async def act(self, cue: Cue) -> str:
        if cue.verb == "show":
            return status_line(views.status(self.simulation.state))
        if cue.verb == "lose":
            return await self._lose()
        if cue.verb == "quarantine":
            self.simulation.quarantine.is_reachable = cue.name == "back"
            return ""
        if cue.verb == "release":
            await self.simulation.quarantine.release(self.simulation.spec.cluster, cue.name)
            return ""
        return await self._tell(cue)

    async def _lose(self) -> str:
        if self.simulation.state.mode is not Mode.RECOVERING:
            return "there is none"
        self.simulation.lost.set()
        await self._taken_up()
        return "its outcome never arrives"

    async def _tell(self, cue: Cue) -> str:
        try:
            self.simulation.command(cue.name, cue.args)
        except CommandRejected as error:
            return f"refused: {error}"
        if self.simulation.leave.is_set():
            await self._taken_up()
        return ""

    async def _taken_up(self) -> None:
        self.simulation.acted.clear()
        await self.simulation.acted.wait()

    async def played(self, notes: tuple[Note, ...]) -> Played:
        state, chronicle = self.simulation.state, self.simulation.chronicle
        return Played(
            decisions=tuple(self.simulation.decisions),
            restarts=tuple(responses.restarts(chronicle)),
            status=views.status(state),
            report=responses.report(state, chronicle),
            effects=await self.backend.admin.effects(),
            notes=notes,
        )

    def has_happened(self, when: When) -> bool:
        state = self.backend.cluster.state
        if when.step is not None:
            return not any((a.job, a.step) == (when.job, when.step) for a in state.awaited)
        ends_at = max(self.simulation.state.now - EPOCH, *(effect.at for effect in state.effects))
        return (when.at_s or 0.0) <= ends_at


def spec_of(scenario: Scenario) -> JobSpec:
    """The job; `policy` says what no native document can."""
    spec = compile_document(dict(scenario.document))
    phases = tuple(
        replace(p, policy=POLICY.validate_python(asdict(p.policy) | dict(scenario.policy)))
        for p in spec.phases
    )
    return replace(spec, phases=phases)
