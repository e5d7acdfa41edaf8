"""The promises of the design over a simulated job; the fewest mishaps that break one, as a scenario."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from everstep.backends.fake.simulated.model import Job
from everstep.core.deciding.decision import Decision
from everstep.core.levels import Level
from everstep.core.loop.next_actions import Action, RunPlan
from everstep.core.state import JobState
from everstep.dialects.registry import compile_document
from everstep.simulate.fault_classes import FALSE_ALARMS, HOUR_S, ROWS, Effect, Lasting, Profile
from everstep.simulate.jobs import JobNumbers, as_simulated
from everstep.simulate.mishaps import Mishap, drawn
from everstep.simulate.policies import policy_named
from everstep.simulate.runs import Run, Scene
from tests.support.stage import document

NODES, SPARES = 5, 2
HOURS_OF_FAULTS, HOURS = 6.0, 60.0
NUMBERS = JobNumbers(
    step_s=1.0,
    checkpoint_s=60.0,
    write_s=0.0,
    start_s=2.0,
    load_s=0.0,
    pod_s=2.0,
    steps=int(8 * HOUR_S),
)
"""Starts and pods take as long as on every fake cluster, so that a scenario plays the same."""
SURVIVORS = replace(NUMBERS, library="levels", snapshot_every_s=10.0, restore_s=0.0, rebuild_s=0.0)
"""Numbers of jobs whose ranks keep snapshots and outlive faults."""
BUDGET = {"all": {"limit": 10_000, "levels": ["in_place", "suspension", "pod", "job", "rollback"]}}
BROKEN_FOR = Lasting(median_s=1_800.0, sigma=1.0, most_s=4 * HOUR_S)

PROFILE = Profile(
    name="promises",
    rate=8_000.0,
    false_rate=3_000.0,
    together=0.2,
    rows=tuple(replace(row, repair=BROKEN_FOR) for row in ROWS if row.effect is not Effect.SWITCH),
    false_rows=FALSE_ALARMS,
    source="made up: a fault every half an hour, each class of a profile among them",
)


class Broken(AssertionError):
    """A promise that does not hold."""


@dataclass(slots=True)
class Observer:
    """Notes what a job did, and holds the promises that have to hold at every moment."""

    run: Run = field(init=False)
    billed: Counter[str] = field(default_factory=Counter)
    last_n: dict[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    decision: Decision | None = None  # the last one that was carried out

    def watch(self, run: Run) -> None:
        self.run = run
        steps_began = run.backend.state.steps_began
        run.backend.state.steps_began = lambda job: self._steps_begin(job, steps_began)

    def note_action(self, state: JobState, action: Action) -> None:
        self.used = Counter(state.ledger.used)
        if not isinstance(action, RunPlan) or action.plan.n == 0 or state.incident is None:
            return
        decision = state.incident.decision
        if not decision.reason or not decision.seen:
            raise Broken(f"restart {action.plan.n} is not explained")
        if decision.level in (Level.NOTE, Level.FAIL):
            raise Broken(f"{decision.level} is no restart")
        self._check_level(decision)
        if action.plan.n == 1:  # a new run
            self.billed.clear()
        self.billed.update(decision.bills)
        if self.billed != self.used:
            raise Broken(f"billed {dict(self.billed)}, used {dict(self.used)}")

    def _check_level(self, decision: Decision) -> None:
        """A level that failed falls to one of those below it."""
        before, self.decision = self.decision, decision
        if before is None or before == decision or decision.instead_of is not before.level:
            return
        is_same = decision.fault.cls is before.fault.cls
        if is_same and before.ladder and decision.level not in before.ladder:
            raise Broken(f"{before.level} failed, and {decision.level} is not below it")

    def _steps_begin(self, job: Job, then: Callable[[Job], None]) -> None:
        before = self.run.backend.trainings.get(job.id, ())
        if any(training.halted_at is None for training in before):
            raise Broken("two generations step at the same time")
        for pod in job.pods.values():
            cause = self.run.world.sick.get(pod.node.name)
            if pod.is_lost or (cause is not None and pod.node.is_down):
                raise Broken(f"{pod.name} steps on {pod.node.name}, which is down")
            if pod.node.name in self.run.backend.state.isolated:
                raise Broken(f"{pod.name} steps on {pod.node.name}, which is isolated")
        then(job)


def check(mishaps: Sequence[Mishap], numbers: JobNumbers = NUMBERS) -> Run:
    """Play the job with these mishaps. Raises `Broken` with the promise that does not hold."""
    spec = compile_document(document(nodes=NODES, recovery={"budgets": BUDGET}))
    scene = Scene(
        jobs=(as_simulated(spec, numbers, nodes=None),),
        nodes=NODES + SPARES,
        numbers=numbers,
        mishaps=tuple(mishaps),
        days=HOURS / 24,
    )
    observer = Observer()
    run = Run(scene, policy_named("document"), observer.note_action)
    observer.watch(run)
    asyncio.run(run.play())
    notes = run.notes["demo"]
    if notes.completed_s is None:
        raise Broken("the faults have stopped, and the job has not finished")
    if all(mishap.effect is Effect.FALSE_SILENCE for mishap in mishaps) and notes.restarts:
        raise Broken("a healthy job was restarted because a node did not answer")
    return run


def mishaps_of(seed: int) -> tuple[Mishap, ...]:
    return drawn(PROFILE, nodes=NODES + SPARES, days=HOURS_OF_FAULTS / 24, seed=seed)


Check = Callable[[Sequence[Mishap]], object]


def problem_of(mishaps: Sequence[Mishap], checked: Check) -> str | None:
    try:
        checked(mishaps)
    except Broken as error:
        return str(error)
    return None


def shrunken(mishaps: Sequence[Mishap], checked: Check = check) -> tuple[Mishap, ...]:
    """As few of these mishaps as still break a promise: parts are left out, ever smaller ones."""
    remaining = list(mishaps)
    size = max(len(remaining) // 2, 1)
    while True:
        at = 0
        while at < len(remaining):
            fewer = remaining[:at] + remaining[at + size :]
            if problem_of(fewer, checked) is not None:
                remaining = fewer
            else:
                at += size
        if size == 1:
            return tuple(remaining)
        size = max(size // 2, 1)


def scenario(mishaps: Sequence[Mishap], problem: str, numbers: JobNumbers = NUMBERS) -> str:
    """A file for tests/scenarios with what these mishaps were on the cluster."""
    spec = compile_document(document(nodes=NODES))
    phase = as_simulated(spec, numbers, nodes=None).phases[0]
    job = {"nodes": NODES, "accelerators_per_node": 1, "env": dict(phase.env)}
    return "\n".join(
        (
            f"# A simulation found this: {problem}.",
            "",
            "not real: its times are those of a simulation",
            f"cluster: {NODES + SPARES} nodes, 1 devices",
            f"job: {job}",
            "",
            *lines_of(mishaps, numbers),
            "",
        )
    )


def lines_of(mishaps: Sequence[Mishap], numbers: JobNumbers = NUMBERS) -> list[str]:
    """The fault lines of a run with these mishaps, up to where a promise broke."""
    spec = compile_document(document(nodes=NODES, recovery={"budgets": BUDGET}))
    scene = Scene(
        jobs=(as_simulated(spec, numbers, nodes=None),),
        nodes=NODES + SPARES,
        numbers=numbers,
        mishaps=tuple(mishaps),
        days=HOURS / 24,
    )
    run = Run(scene, policy_named("document"))
    asyncio.run(run.play())
    return run.world.lines
