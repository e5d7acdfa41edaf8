"""The course of a scenario on the fake cluster, as a list of actions that real processes can follow.

A scenario names times (`at 38s`) and steps. Times differ on a real machine. So `survey` plays the scenario
on the fake cluster first and notes, for each fault and cue, what the job was doing then: the `Moment`, such
as step 34 of its first start, or waiting for places in its second restart. A player on real processes
waits for that moment and then does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated.state import Effect
from everstep.backends.fake.simulated.training import Training
from everstep.backends.fault_lines import When
from everstep.chronicle import views
from everstep.core.loop import next_actions
from everstep.core.state import JobState
from everstep.dialects import responses
from tests.support.playing.scenario import JOB, Cue, FaultLine, Played, Scenario, play
from tests.support.playing.simulated import Simulated

LOOK = "look"
ANY = -1
"""As `Moment.records`: any number of restarts, since the step identifies the moment already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A step at which the ranks of a generation stop. It opens only if training went on after that step."""

    generation: int
    step: int
    ranks: int
    opens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstartedPod:
    """A pod that has a place and whose agent has not started the ranks yet."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the job has to show before an action is done."""

    state: str
    generation: int
    records: int
    decisions: int
    waiting_for: str | None
    gate: Gate | None
    unstarted: tuple[UnstartedPod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Faults (all at once) or one cue, and the moment for them. Without a moment: before the job starts."""

    moment: Moment | None
    faults: tuple[FaultLine, ...] = ()
    cue: Cue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The actions of a scenario in their order, the gates of training, and the expected outcome."""

    actions: tuple[Action, ...]
    gates: Mapping[int, tuple[int, ...]]  # steps, by generation
    played: Played
    ends_long_after: bool  # the job waits for very long before it gives up


LONG_S = 1_000.0
LOOK_BEFORE_S = 0.001
"""The status is taken this long before a fault, so that it shows no reaction to the fault yet."""


async def survey(scenario: Scenario) -> Course:
    """Play the scenario on the fake cluster and note what the job does at each fault and cue."""
    surveyor = _Surveyor()
    timed = {fault.when.at_s for fault in scenario.faults if fault.when.at_s is not None}
    looks = [Cue(line=0, at_s=at_s - LOOK_BEFORE_S, verb=LOOK, name="") for at_s in timed]
    cues = sorted([*scenario.cues, *looks], key=lambda cue: cue.at_s)
    played = await play(replace(scenario, cues=tuple(cues)), surveyor)
    played = replace(played, notes=tuple(note for note in played.notes if note.what != LOOK))
    actions = surveyor.actions(scenario, played)
    last_s = max((surveyor.time_of(action) for action in actions), default=0.0)
    ends_s = max((decision.at - EPOCH for decision in played.decisions), default=0.0)
    return Course(
        actions=tuple(actions),
        gates=surveyor.gates(actions),
        played=played,
        ends_long_after=ends_s - last_s > LONG_S,
    )


@dataclass(slots=True)
class _JobStatus:
    """The status of the job at one time."""

    state: str
    generation: int
    records: int
    waiting_for: str | None


class _Surveyor(Simulated):
    """The driver on the fake cluster. Notes every start of training, and the status before each cue."""

    def __init__(self) -> None:
        super().__init__()
        self.trainings: dict[int, Training] = {}
        self.statuses: dict[float, _JobStatus] = {}

    async def set_up(self, scenario: Scenario) -> None:
        await super().set_up(scenario)
        self.simulation.on_action = self._note_training

    def _note_training(self, _state: JobState, _action: next_actions.Action) -> None:
        job = self.backend.cluster.state.jobs.get(JOB)
        if job is not None and job.training is not None:
            self.trainings[job.training.generation] = job.training

    async def act(self, cue: Cue) -> str:
        state = self.simulation.state
        status: Mapping[str, Any] = views.status(state)
        records = len(responses.restarts(self.simulation.chronicle))
        job_status = _JobStatus(
            status["state"], status["generation"], records, status["waiting_for"]
        )
        self.statuses.setdefault(cue.at_s, job_status)
        return "" if cue.verb == LOOK else await super().act(cue)

    # -- afterwards ------------------------------------------------------------------------------

    def actions(self, scenario: Scenario, played: Played) -> list[Action]:
        groups: dict[When, list[FaultLine]] = {}
        for fault in scenario.faults:
            groups.setdefault(fault.when, []).append(fault)
        actions = [
            Action(moment=self._moment(when, played), faults=tuple(faults))
            for when, faults in groups.items()
        ]
        actions += [
            Action(moment=self._moment(When(at_s=cue.at_s), played), cue=cue)
            for cue in scenario.cues
        ]
        return sorted(actions, key=self.time_of)

    def time_of(self, action: Action) -> float:
        if action.cue is not None:
            return action.cue.at_s
        when = action.faults[0].when
        if when.step is not None:
            return self._first_completion(when.step)[1]
        return when.at_s or 0.0

    def _first_completion(self, step: int) -> tuple[Training, float]:
        """The start of training that completed this step first, and the time."""
        completions = [
            (training, training.time_of(step) - EPOCH)
            for training in self.trainings.values()
            if training.resume < step <= _last_step(training)
        ]
        return min(completions, key=lambda pair: pair[1])

    def _moment(self, when: When, played: Played) -> Moment | None:
        if when.step is not None:
            training, at_s = self._first_completion(when.step)
            gate = _gate(training, when.step)
            return Moment(
                state="running",
                generation=training.generation,
                records=ANY,
                decisions=_decisions_before(played, at_s),
                waiting_for=None,
                gate=gate,
                unstarted=(),
            )
        if when.at_s is None:
            return None
        at_s = when.at_s
        job_status = self.statuses.get(at_s - LOOK_BEFORE_S) or self.statuses[at_s]
        unstarted = _unstarted_pods(played.effects, at_s)
        return Moment(
            state=job_status.state,
            generation=job_status.generation,
            records=job_status.records,
            decisions=_decisions_before(played, at_s),
            waiting_for=None if unstarted else job_status.waiting_for,
            gate=None if unstarted else self._gate_at(EPOCH + at_s),
            unstarted=unstarted,
        )

    def _gate_at(self, now: float) -> Gate | None:
        running = [
            training
            for training in self.trainings.values()
            if training.first_at is not None and training.first_at <= now
            if training.halted_at is None or now <= training.halted_at
        ]
        if not running:
            return None
        training = max(running, key=lambda start: start.generation)
        return _gate(training, _step_at(training, now))

    def gates(self, actions: Sequence[Action]) -> dict[int, tuple[int, ...]]:
        """Steps to stop at, by generation: those of the actions, and the last step of each broken start."""
        steps_by_generation: dict[int, set[int]] = {}
        for action in actions:
            if action.moment is not None and action.moment.gate is not None:
                gate = action.moment.gate
                steps_by_generation.setdefault(gate.generation, set()).add(gate.step)
        for generation, training in self.trainings.items():
            if _last_step(training) < training.script.steps:
                steps_by_generation.setdefault(generation, set()).add(_last_step(training))
        return {
            generation: tuple(sorted(steps)) for generation, steps in steps_by_generation.items()
        }


def _decisions_before(played: Played, at_s: float) -> int:
    """Count the decisions before this time. A decision that only notes a fault is visible nowhere else."""
    return sum(decision.at - EPOCH < at_s for decision in played.decisions)


def _last_step(training: Training) -> int:
    """The newest step that this start of training completed."""
    if training.first_at is None:
        return training.resume
    return training.script.steps if training.halted_at is None else training.halted_step


def _step_at(training: Training, now: float) -> int:
    assert training.first_at is not None
    steps_made = int((now - training.first_at + 1e-6) / training.script.step_s)
    return min(_last_step(training), training.resume + 1 + steps_made)


def _gate(training: Training, step: int) -> Gate:
    ends_here = step >= _last_step(training)
    return Gate(
        generation=training.generation,
        step=step,
        ranks=len(training.slots),
        opens=not ends_here or step == training.script.steps,
    )


def _unstarted_pods(effects: Sequence[Effect], at_s: float) -> tuple[UnstartedPod, ...]:
    """The pods that have a place at this time and whose ranks were not started yet."""
    placed: dict[UnstartedPod, float] = {}
    for effect in effects:
        words = effect.what.split()
        if words[:2] == ["create", "pod"]:
            slot, generation = words[2].rpartition("/")[2], words[-1].strip("(g)")
            placed[UnstartedPod(slot=int(slot), generation=int(generation))] = effect.at
    started = {
        int(effect.what.split()[-1].strip("(g)")): effect.at
        for effect in effects
        if effect.what.startswith("start ")
    }
    return tuple(
        pod
        for pod, placed_at in placed.items()
        if placed_at < at_s < started.get(pod.generation, float("inf"))
        and not any(placed_at < later < at_s for later in _placements_of_slot(pod, placed))
    )


def _placements_of_slot(pod: UnstartedPod, placed: Mapping[UnstartedPod, float]) -> list[float]:
    return [at for other, at in placed.items() if other.slot == pod.slot and other != pod]
