"""The course of a scenario on the fake cluster, for whoever plays it elsewhere.

Times mean nothing on a real machine. What a line `at 38s` means there is what the job was doing then:
standing at step 34 of its first start, or waiting for room in its second restart, or being placed.
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
from everstep.core.loop import lifecycle
from everstep.core.state import JobState
from everstep.dialects import responses
from tests.support.playing.scenario import JOB, Cue, FaultLine, Played, Scenario, play
from tests.support.playing.simulated import Simulated

LOOK = "look"
ANY = -1
"""Restarts are not counted where a line waits for a step: the step says enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A step of a generation at which training stands. It goes on afterwards only where it did."""

    generation: int
    step: int
    ranks: int
    opens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A pod that is placed and not ready yet."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What has to be so before something is done."""

    state: str
    generation: int
    records: int
    decisions: int
    waiting_for: str | None
    gate: Gate | None
    doors: tuple[Door, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What is done at one moment: faults, all at once, or a cue. Without a moment: before the job."""

    moment: Moment | None
    faults: tuple[FaultLine, ...] = ()
    cue: Cue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All deeds in their order, where training has to be stopped, and what should come of it."""

    deeds: tuple[Deed, ...]
    gates: Mapping[int, tuple[int, ...]]  # by generation
    played: Played
    ends_long_after: bool  # the job waits for very long before it gives up


LONG_S = 1_000.0
JUST_S = 0.001
"""So long before a fault we look: what the job shows then is no answer to it."""


async def survey(scenario: Scenario) -> Course:
    """Play it on the fake cluster and look at what the job is doing whenever something is done."""
    surveyor = _Surveyor()
    timed = {fault.when.at_s for fault in scenario.faults if fault.when.at_s is not None}
    looks = [Cue(line=0, at_s=at_s - JUST_S, verb=LOOK, name="") for at_s in timed]
    cues = sorted([*scenario.cues, *looks], key=lambda cue: cue.at_s)
    played = await play(replace(scenario, cues=tuple(cues)), surveyor)
    played = replace(played, notes=tuple(note for note in played.notes if note.what != LOOK))
    deeds = surveyor.deeds(scenario, played)
    last_s = max((surveyor.time_of(deed) for deed in deeds), default=0.0)
    ends_s = max((decision.at - EPOCH for decision in played.decisions), default=0.0)
    return Course(
        deeds=tuple(deeds),
        gates=surveyor.gates(deeds),
        played=played,
        ends_long_after=ends_s - last_s > LONG_S,
    )


@dataclass(slots=True)
class _Status:
    """What the job showed at a time."""

    state: str
    generation: int
    records: int
    waiting_for: str | None


class _Surveyor(Simulated):
    """The driver on the fake cluster, with a note book."""

    def __init__(self) -> None:
        super().__init__()
        self.trainings: dict[int, Training] = {}
        self.seen: dict[float, _Status] = {}

    async def set_up(self, scenario: Scenario) -> None:
        await super().set_up(scenario)
        self.simulation.on_action = self._note_training

    def _note_training(self, _state: JobState, _action: lifecycle.Action) -> None:
        job = self.backend.cluster.state.jobs.get(JOB)
        if job is not None and job.training is not None:
            self.trainings[job.training.generation] = job.training

    async def act(self, cue: Cue) -> str:
        state = self.simulation.state
        status: Mapping[str, Any] = views.status(state)
        records = len(responses.restarts(self.simulation.chronicle))
        seen = _Status(status["state"], status["generation"], records, status["waiting_for"])
        self.seen.setdefault(cue.at_s, seen)
        return "" if cue.verb == LOOK else await super().act(cue)

    # -- afterwards ------------------------------------------------------------------------------

    def deeds(self, scenario: Scenario, played: Played) -> list[Deed]:
        groups: dict[When, list[FaultLine]] = {}
        for fault in scenario.faults:
            groups.setdefault(fault.when, []).append(fault)
        found = [
            Deed(moment=self._moment(when, played), faults=tuple(faults))
            for when, faults in groups.items()
        ]
        found += [
            Deed(moment=self._moment(When(at_s=cue.at_s), played), cue=cue) for cue in scenario.cues
        ]
        return sorted(found, key=self.time_of)

    def time_of(self, deed: Deed) -> float:
        if deed.cue is not None:
            return deed.cue.at_s
        when = deed.faults[0].when
        if when.step is not None:
            return self._completed(when.step)[1]
        return when.at_s or 0.0

    def _completed(self, step: int) -> tuple[Training, float]:
        """Where and when this step was completed first."""
        found = [
            (training, training.time_of(step) - EPOCH)
            for training in self.trainings.values()
            if training.resume < step <= _last(training)
        ]
        return min(found, key=lambda pair: pair[1])

    def _moment(self, when: When, played: Played) -> Moment | None:
        if when.step is not None:
            training, at_s = self._completed(when.step)
            gate = _gate(training, when.step)
            return Moment(
                state="running",
                generation=training.generation,
                records=ANY,
                decisions=_decided(played, at_s),
                waiting_for=None,
                gate=gate,
                doors=(),
            )
        if when.at_s is None:
            return None
        at_s = when.at_s
        seen = self.seen.get(at_s - JUST_S) or self.seen[at_s]
        doors = _doors(played.effects, at_s)
        return Moment(
            state=seen.state,
            generation=seen.generation,
            records=seen.records,
            decisions=_decided(played, at_s),
            waiting_for=None if doors else seen.waiting_for,
            gate=None if doors else self._gate_at(EPOCH + at_s),
            doors=doors,
        )

    def _gate_at(self, now: float) -> Gate | None:
        stepping = [
            training
            for training in self.trainings.values()
            if training.first_at is not None and training.first_at <= now
            if training.halted_at is None or now <= training.halted_at
        ]
        if not stepping:
            return None
        training = max(stepping, key=lambda t: t.generation)
        return _gate(training, _step_at(training, now))

    def gates(self, deeds: Sequence[Deed]) -> dict[int, tuple[int, ...]]:
        """Those of the deeds, and where each generation came to its end."""
        found: dict[int, set[int]] = {}
        for deed in deeds:
            if deed.moment is not None and deed.moment.gate is not None:
                gate = deed.moment.gate
                found.setdefault(gate.generation, set()).add(gate.step)
        for generation, training in self.trainings.items():
            if _last(training) < training.script.steps:
                found.setdefault(generation, set()).add(_last(training))
        return {generation: tuple(sorted(steps)) for generation, steps in found.items()}


def _decided(played: Played, at_s: float) -> int:
    """How many decisions came before this time; a mere note shows nowhere else."""
    return sum(decision.at - EPOCH < at_s for decision in played.decisions)


def _last(training: Training) -> int:
    """The newest step this start ever completed."""
    if training.first_at is None:
        return training.resume
    return training.script.steps if training.halted_at is None else training.halted_step


def _step_at(training: Training, now: float) -> int:
    assert training.first_at is not None
    further = int((now - training.first_at + 1e-6) / training.script.step_s)
    return min(_last(training), training.resume + 1 + further)


def _gate(training: Training, step: int) -> Gate:
    ends_here = step >= _last(training)
    return Gate(
        generation=training.generation,
        step=step,
        ranks=len(training.slots),
        opens=not ends_here or step == training.script.steps,
    )


def _doors(effects: Sequence[Effect], at_s: float) -> tuple[Door, ...]:
    """The pods that are placed at this time and in which nothing was started yet."""
    placed: dict[Door, float] = {}
    for effect in effects:
        words = effect.what.split()
        if words[:2] == ["create", "pod"]:
            slot, generation = words[2].rpartition("/")[2], words[-1].strip("(g)")
            placed[Door(slot=int(slot), generation=int(generation))] = effect.at
    started = {
        int(effect.what.split()[-1].strip("(g)")): effect.at
        for effect in effects
        if effect.what.startswith("start ")
    }
    return tuple(
        door
        for door, placed_s in placed.items()
        if placed_s < at_s < started.get(door.generation, float("inf"))
        and not any(placed_s < later < at_s for later in _replaced(door, placed))
    )


def _replaced(door: Door, placed: Mapping[Door, float]) -> list[float]:
    return [at for other, at in placed.items() if other.slot == door.slot and other != door]
