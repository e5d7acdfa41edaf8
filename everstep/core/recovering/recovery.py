"""The machine that carries out a plan: which step is next, and what the plan came to.

Pure; the Recovery workflow, the launch of a job and the simulator all drive this one. It decides
nothing: the steps are the plan's, and the first step that fails or gives way ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from everstep.core.deciding.decision import Outcome, Plan, Result, StepEnd, StepOrder, StepResult
from everstep.core.levels import Step

RESULT: Mapping[StepEnd, Result] = {
    "done": "success",
    "failed": "failed",
    "superseded": "superseded",
}

STAGE: Mapping[Step, str] = {
    Step.STANDBY: "standby",
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

_START, _PLACES = frozenset({Step.START}), frozenset({Step.PLACE, Step.STANDBY})
READERS: Mapping[str, tuple[Any, frozenset[Step]]] = {
    "command": ((), _START),
    "env": ({}, _START),
    "env_from": ({}, _START),
    "files": ({}, _START),
    "log_pattern": (None, _START),
    "loss_pattern": (None, _START),
    "prefetch": (None, _START),
    "prewarm": (None, _START),
    "pod_template": ({}, _PLACES),  # often a hundred lines of YAML
}
"""Fields of a phase that may be large and few steps read: what the others get instead, and those steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """How far a plan is, and what it would come to if it ended here."""

    plan: Plan
    so_far: Outcome
    index: int = 0
    above: int = 0  # the newest generation that was found on storage

    @property
    def step(self) -> Step:
        return self.plan.remedy.steps[self.index]


def begin(plan: Plan) -> PlanProgress:
    return PlanProgress(
        plan=plan,
        so_far=Outcome(
            result="success",
            now=plan.since,
            cursor=plan.cursor,
            generation=plan.generation,
            active=tuple(sorted(plan.slots)),
            avoid=plan.remedy.avoid,
            avoid_devices=plan.avoid_devices,
        ),
    )


def next_step(progress: PlanProgress) -> StepOrder | Outcome:
    """The order for the next step, or, after the last one, the success."""
    so_far = progress.so_far
    if progress.index == len(progress.plan.remedy.steps):
        return replace(so_far, was_started=True)
    return StepOrder(
        step=progress.step,
        plan=_for(progress.step, progress.plan),
        generation=so_far.generation,
        since=so_far.now,
        cursor=so_far.cursor,
        active=so_far.active,
        avoid=so_far.avoid,
        avoid_devices=so_far.avoid_devices,
        kept_ranks=so_far.kept_ranks,
        resume=so_far.resume,
        snapshot=so_far.snapshot,
        spare_waited_s=_spare_waited_s(progress),
        above=progress.above,
    )


def _spare_waited_s(progress: PlanProgress) -> float:
    """How long a spare node has had time to come: nodes may be missing since the stop began."""
    rules = progress.plan.places
    if progress.step is not Step.PLACE or rules is None or not rules.spare_s:
        return 0.0
    spent = progress.so_far.stages_s
    return spent.get(STAGE[Step.STOP], 0.0) + spent.get(STAGE[Step.ISOLATE], 0.0)


def _for(step: Step, plan: Plan) -> Plan:
    """The plan without what other steps alone read of its phase: every order is kept in the history."""
    unread = {name: value for name, (value, readers) in READERS.items() if step not in readers}
    return replace(plan, phase=replace(plan.phase, **unread))


def after(progress: PlanProgress, result: StepResult) -> PlanProgress | Outcome:
    """Where the plan is after this step's result; an outcome as soon as a step did not get done."""
    so_far = _with(progress, result)
    if result.end == "done":
        return replace(progress, so_far=so_far, index=progress.index + 1)
    if result.end == "outdated":
        return _once_more(replace(progress, so_far=so_far, above=result.newer))
    return replace(
        so_far,
        result=RESULT[result.end],
        step=progress.step,
        was_started=progress.step is Step.START,
    )


def _once_more(progress: PlanProgress) -> PlanProgress:
    """A stop with a generation above the one found on storage, then the step again."""
    steps, now = progress.plan.remedy.steps, progress.index
    remedy = replace(progress.plan.remedy, steps=(*steps[:now], Step.STOP, *steps[now:]))
    return replace(progress, plan=replace(progress.plan, remedy=remedy))


def _with(progress: PlanProgress, result: StepResult) -> Outcome:
    old, stage = progress.so_far, STAGE[progress.step]
    # Other books may have another clock: they take no time back.
    spent = old.stages_s.get(stage, 0.0) + max(result.now - old.now, 0.0)
    is_precheck = progress.step is Step.PRECHECK
    return replace(
        old,
        now=result.now,
        cursor=result.cursor,
        generation=result.generation,
        active=result.active,
        cause=result.cause,
        facts=(*old.facts, *result.facts),
        pods={**old.pods, **result.pods},
        stood_up_s={**old.stood_up_s, **result.stood_up_s},
        kept_ranks=result.kept_ranks if progress.step is Step.STOP else old.kept_ranks,
        resume=result.resume or old.resume,
        snapshot=result.snapshot or old.snapshot,
        newer_saved=result.newer_saved or old.newer_saved,
        no_snapshot=result.no_snapshot or old.no_snapshot,
        stages_s={**old.stages_s, stage: round(spent, 6)},
        evidence=result.evidence or old.evidence,
        isolated=(*old.isolated, *result.isolated),
        deferred=(*old.deferred, *result.deferred),
        avoid=tuple(dict.fromkeys((*old.avoid, *result.avoid))),
        avoid_devices=tuple(dict.fromkeys((*old.avoid_devices, *result.avoid_devices))),
        notes=(*old.notes, *result.notes),
        waited=(*old.waited, *result.waited),
        works=(*old.works, *result.works),
        lost_containers=result.lost_containers,
        newer_remain=old.newer_remain or result.newer_remain,
        prechecked=(old.now, result.now) if is_precheck else old.prechecked,
    )


def failure(plan: Plan, outcome: Outcome) -> str:
    """What a failed plan says of itself."""
    cause = outcome.cause
    why = cause.message or cause.kind if cause is not None else "no reason was given"
    where = f" on {cause.where}" if cause is not None and cause.where not in why else ""
    return f"{plan.title} failed at {outcome.step}: {why}{where}"
