"""The machine that carries out a plan: which step is next, and what the plan came to.

Pure; the Recovery workflow, the launch of a job and the simulator all drive this one. It decides
nothing: the steps are the plan's, and the first step that fails or gives way ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from everstep.core.decision import (
    Isolation,
    Outcome,
    Plan,
    Result,
    StepEnd,
    StepOrder,
    StepResult,
    Waited,
)
from everstep.core.facts import Fact
from everstep.core.levels import Step
from everstep.core.world import Checkpoint, Journal, PodRef

T = TypeVar("T")

RESULT: Mapping[StepEnd, Result] = {
    "done": "success",
    "failed": "failed",
    "superseded": "superseded",
}

STAGE: Mapping[Step, str] = {
    Step.STOP: "stop",
    Step.SPACE: "space",
    Step.HEAL: "heal",
    Step.WRITABLE: "heal",
    Step.ISOLATE: "place",
    Step.PLACE: "place",
    Step.PRECHECK: "place",
    Step.RESUME: "start",
    Step.START: "start",
}
"""Under which name of a record's `stages_s` the time of a step is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a plan is."""

    plan: Plan
    generation: int
    now: float
    cursor: int
    living: tuple[int, ...]
    index: int = 0
    pods: Mapping[int, PodRef] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    resume: Checkpoint | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    evidence: str | None = None
    isolated: tuple[str, ...] = ()
    deferred: tuple[Isolation, ...] = ()
    avoid: tuple[str, ...] = ()
    avoid_devices: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    waited: tuple[Waited, ...] = ()
    prechecked: tuple[float, float] | None = None
    told: int = 0


def begin(plan: Plan) -> Progress:
    return Progress(
        plan=plan,
        generation=plan.generation,
        now=plan.since,
        cursor=plan.cursor,
        living=tuple(sorted(plan.slots)),
        avoid=plan.avoid,
        avoid_devices=plan.avoid_devices,
    )


def next_step(progress: Progress) -> StepOrder | Outcome:
    """The order for the next step, or, after the last one, the success."""
    if progress.index == len(progress.plan.steps):
        return _outcome(progress, StepResult(end="done", now=progress.now, cursor=progress.cursor))
    return StepOrder(
        step=progress.plan.steps[progress.index],
        plan=replace(progress.plan, journal=Journal()),
        generation=progress.generation,
        since=progress.now,
        cursor=progress.cursor,
        living=progress.living,
        isolated=progress.isolated,
        avoid=progress.avoid,
        avoid_devices=progress.avoid_devices,
        resume=progress.resume,
        journal=_untold(progress),
    )


def _untold(progress: Progress) -> Journal:
    known = progress.plan.journal
    left = tuple(notice for notice in known.notices if notice.number > progress.told)
    return replace(known, notices=left)


def after(progress: Progress, result: StepResult) -> Progress | Outcome:
    """Where the plan is after this step's result; an outcome as soon as a step did not get done."""
    progress = _with(progress, result)
    if result.end != "done":
        return _outcome(progress, result)
    return replace(progress, index=progress.index + 1)


def _with(progress: Progress, result: StepResult) -> Progress:
    stage = STAGE[progress.plan.steps[progress.index]]
    # Other books may have another clock: they take no time back.
    spent = progress.stages_s.get(stage, 0.0) + max(result.now - progress.now, 0.0)
    is_precheck = progress.plan.steps[progress.index] is Step.PRECHECK
    return replace(
        progress,
        now=result.now,
        cursor=result.cursor,
        generation=_given(result.generation, progress.generation),
        living=_given(result.living, progress.living),
        pods={**progress.pods, **result.pods},
        facts=progress.facts + result.facts,
        resume=_given(result.resume, progress.resume),
        stages_s={**progress.stages_s, stage: round(spent, 6)},
        evidence=_given(result.evidence, progress.evidence),
        isolated=(*progress.isolated, *result.isolated),
        deferred=(*progress.deferred, *result.deferred),
        avoid=tuple(dict.fromkeys((*progress.avoid, *result.avoid))),
        avoid_devices=tuple(dict.fromkeys((*progress.avoid_devices, *result.avoid_devices))),
        notes=(*progress.notes, *result.notes),
        waited=(*progress.waited, *result.waited),
        prechecked=(progress.now, result.now) if is_precheck else progress.prechecked,
        told=max(progress.told, result.told),
    )


def _given(new: T | None, old: T) -> T:
    return old if new is None else new


def failure(plan: Plan, outcome: Outcome) -> str:
    """What a failed plan says of itself."""
    cause = outcome.cause
    why = cause.message or cause.kind if cause is not None else "no reason was told"
    where = f" on {cause.where}" if cause is not None and cause.where not in why else ""
    return f"{plan.title} failed at {outcome.step}: {why}{where}"


def _outcome(progress: Progress, last: StepResult) -> Outcome:
    finished = progress.index == len(progress.plan.steps)
    step = None if finished else progress.plan.steps[progress.index]
    return Outcome(
        result=RESULT[last.end],
        now=progress.now,
        cursor=progress.cursor,
        generation=progress.generation,
        living=progress.living,
        step=step,
        cause=last.cause,
        facts=progress.facts,
        pods=progress.pods,
        resume=progress.resume,
        was_started=finished or step is Step.START,
        stages_s=progress.stages_s,
        evidence=progress.evidence,
        isolated=progress.isolated,
        deferred=progress.deferred,
        avoid=progress.avoid,
        avoid_devices=progress.avoid_devices,
        notes=progress.notes,
        waited=progress.waited,
        gone=last.gone,
        prechecked=progress.prechecked,
        told=progress.told,
    )
