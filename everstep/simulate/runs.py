"""One run: jobs under a policy on a cluster to which mishaps happen, until the last day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from everstep.backends.fake.settings import EPOCH
from everstep.core.facts import Fact
from everstep.core.loop.next_actions import Action, Decide, RunPlan
from everstep.core.recovering import quarantine
from everstep.core.recovering.quarantine import QuarantineAnswer, Request
from everstep.core.spec import JobSpec
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.simulate.accounts import Account, EndNote, JobLife, RestartNote, account, total
from everstep.simulate.cluster import SimulatedCluster
from everstep.simulate.fault_classes import DAY_S, HOUR_S
from everstep.simulate.jobs import JobNumbers
from everstep.simulate.mishaps import Mishap
from everstep.simulate.policies import PolicyUnderTest
from everstep.simulate.world import World
from everstep.simulation import QuarantineInMemory, Simulation

SUBMITTED_AGAIN_S = 1.5 * HOUR_S
"""A person submits an ended job again after so long, on other nodes than those that ended it.

ByteRobust (SOSP'25): more than 1.5 h until such a node is found by hand.
"""
OF_WATCH = "watch/"
PERSON, END = JobRef(id="a person", run=""), JobRef(id="the last day", run="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a run is about, whatever the policy."""

    jobs: tuple[JobSpec, ...]  # `as_simulated`
    nodes: int  # of the cluster, spares included
    numbers: JobNumbers
    mishaps: tuple[Mishap, ...]
    days: float


def played(scene: Scene, policy: PolicyUnderTest) -> Account:
    """Play the scene under the policy; the time of all its jobs."""
    return asyncio.run(Run(scene, policy).play())


@dataclass(slots=True, kw_only=True)
class JobNotes:
    """What happened to one job."""

    restarts: list[RestartNote] = field(default_factory=list)
    ends: list[EndNote] = field(default_factory=list)
    completed_s: float | None = None
    reported_s: float = 0.0  # when the first of the facts was reported that were decided about last


@dataclass(slots=True, kw_only=True)
class _WatchedQuarantine(QuarantineInMemory):
    """A quarantine whose isolations the world notes."""

    world: World
    cluster: SimulatedCluster
    name: str

    def release_now(self, node: str) -> None:
        """Release the node before the clock goes on."""
        if self.name in self.quarantines:
            book, _ = quarantine.release(self.quarantines[self.name], node)
            self.quarantines[self.name] = book
        self.cluster.cluster.ensure_released(node)

    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        answer = await QuarantineInMemory.isolate(self, cluster, request)
        if answer.verdict == "isolated":
            self.world.note_isolated(request.node)
        return answer


def _reported_s(fact: Fact, now: float) -> float:
    """When a fact was reported. One that the watch itself makes is about a time before: since when."""
    return now if fact.id.startswith(OF_WATCH) else fact.at


class Run:
    """One scene under one policy. `on_action`: gets every state of every job with the action that follows."""

    def __init__(
        self,
        scene: Scene,
        policy: PolicyUnderTest,
        on_action: Callable[[JobState, Action], None] = lambda _state, _action: None,
    ) -> None:
        self._scene, self._policy, self._on_action = scene, policy, on_action
        self.backend = SimulatedCluster(
            nodes=scene.nodes, pod_s=scene.numbers.pod_s, heal_s=scene.numbers.heal_s
        )
        self.world = World(
            self.backend,
            scene.mishaps,
            release=lambda name: self.quarantine.release_now(name),  # noqa: PLW0108  # made below
            has_true_facts=policy.has_true_facts,
            releases=policy.releases,
            probation_s=policy.probation_s,
        )
        self.quarantine = _WatchedQuarantine(
            world=self.world,
            cluster=self.backend,
            backend=self.backend,
            name=scene.jobs[0].cluster,
        )
        self.notes = {spec.name: JobNotes() for spec in scene.jobs}

    async def play(self) -> Account:
        for name in (END.id, *(spec.name for spec in self._scene.jobs)):
            self.backend.hold(name)
        jobs = {asyncio.create_task(self._live(spec)) for spec in self._scene.jobs}
        last_day = asyncio.create_task(self._sleep_until(END, self._scene.days * DAY_S))
        open_tasks = {last_day, *jobs}
        try:
            while last_day in open_tasks:
                ended, open_tasks = await asyncio.wait(
                    open_tasks, return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    task.result()  # an error of ours is raised here
        finally:
            for task in open_tasks:
                task.cancel()
            await asyncio.gather(*open_tasks, return_exceptions=True)
        self.world.end()
        self.backend.end_waits()
        accounts = [account(self._life(spec)) for spec in self._scene.jobs]
        healthy_h = self.world.healthy_isolated_s / HOUR_S
        return replace(total(accounts), healthy_isolated_h=healthy_h)

    async def _live(self, spec: JobSpec) -> None:
        """The job runs; a person submits it again whenever it ended."""
        spec = self._policy.applied(spec)
        for run in range(1_000_000):
            simulation = Simulation(
                backend=self.backend,
                spec=spec,
                job=JobRef(id=spec.name, run=f"run{run}"),
                quarantine=self.quarantine,
                decide=self._policy.decide,
                on_action=self._note_action,
            )
            end = await simulation.run()
            at_s = self.backend.now_s
            until_s = at_s + SUBMITTED_AGAIN_S
            is_wrong = spec.name not in self.world.bugs
            if end.status == "Completed":
                self.notes[spec.name].completed_s = at_s
                self.backend.let_go(spec.name)
                self.backend.holders.let_time_pass()
                return
            self.notes[spec.name].ends.append(
                EndNote(at_s=at_s, until_s=until_s, reason=end.reason, is_wrong=is_wrong)
            )
            self.backend.let_go(spec.name)
            await self._sleep_until(replace(PERSON, id=f"{PERSON.id} for {spec.name}"), until_s)
            self.backend.hold(spec.name)
            self.world.mend(spec.name)
            for node in self.world.hunted(spec.name):
                request = Request(node=node, reason="it ended a job", by="operator")
                await self.quarantine.isolate(spec.cluster, request)

    async def _sleep_until(self, sleeper: JobRef, at_s: float) -> None:
        """Wait for a time of the cluster: what happens until then happens."""
        while self.backend.now_s < at_s:
            await self.backend.observe(sleeper, cursor="", until=EPOCH + at_s)

    def _note_action(self, state: JobState, action: Action) -> None:
        self._on_action(state, action)
        if isinstance(action, Decide):
            times = (_reported_s(fact, state.now) for fact in action.inputs.facts)
            self.notes[state.job.id].reported_s = min(times, default=state.now) - EPOCH
        if not isinstance(action, RunPlan) or action.plan.n == 0 or action.plan.level is None:
            return
        causes = self.world.causes_shown.get(state.job.id, ())
        is_false = all(mishap.name.startswith("false_") for mishap in causes)
        self.notes[state.job.id].restarts.append(
            RestartNote(
                at_s=state.now - EPOCH,
                level=str(action.plan.level),
                fault_class=""
                if state.incident is None
                else str(state.incident.decision.fault.cls),
                is_false=is_false,
                is_hindered=self.world.healthy_isolated() > 0,
                reported_s=self.notes[state.job.id].reported_s,
            )
        )

    def _life(self, spec: JobSpec) -> JobLife:
        notes = self.notes[spec.name]
        waits = [(since, until) for job, since, until in self.backend.waits if job == spec.name]
        return JobLife(
            trainings=self.backend.trainings.get(spec.name, ()),
            restarts=notes.restarts,
            ends=notes.ends,
            waits=waits,
            slow_s=self.world.slow_s.get(spec.name, 0.0),
            write_share=self._scene.numbers.write_share,
            snapshot_share=self._scene.numbers.snapshot_share,
            horizon_s=notes.completed_s or self._scene.days * DAY_S,
        )
