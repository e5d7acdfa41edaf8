"""A restart requested while an incident was open: the restart of the incident serves both."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.deciding.answering import answer
from everstep.core.deciding.decision import Decision, Fault, Remedy
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.exclusions import exclusion
from everstep.core.deciding.naming import PLANNED_LEVELS, Diagnosis, name_fault
from everstep.core.deciding.playbook import name
from everstep.core.deciding.remedies import remedy
from everstep.core.facts import RESTART_REQUESTED, Fact
from everstep.core.levels import SAME_CONTAINER, Level, Step

Facts = tuple[Fact, ...]


def split(facts: Facts) -> tuple[Facts, Facts]:
    """The facts without requested restarts, and those requests."""
    requests = tuple(fact for fact in facts if fact.kind == RESTART_REQUESTED)
    return tuple(fact for fact in facts if fact.kind != RESTART_REQUESTED), requests


def with_requests(inputs: DecisionInput, decision: Decision, requests: Facts) -> Decision:
    """The decision within an incident, whose restart is also the requested one.

    A coarser level that was requested replaces its level, and spends nothing more.
    """
    if not requests or decision.level is Level.FAIL:
        return decision
    if decision.level is Level.NOTE:
        return answer(inputs, name_fault(inputs, requests))
    hardest = max(requests, key=lambda request: PLANNED_LEVELS.index(_requested_level(request)))
    request, _ = name((hardest,))
    level = _common_level(inputs, decision.level, _requested_level(hardest), request)
    if level is not None:
        decision = replace(
            decision,
            level=level,
            ladder=_below(decision.ladder, level),
            remedy=_remedy(inputs, decision, level, request),
        )
    why = f"the restart that was requested as well: {request.message}"
    return replace(decision, reason=f"{decision.reason}; {why}")


def _requested_level(request: Fact) -> Level:
    """The level of the request. A report of this kind has none."""
    level = request.details.get("level")
    return Level(str(level)) if level in {*PLANNED_LEVELS} else Level.JOB


def _common_level(
    inputs: DecisionInput, decided: Level, requested: Level, request: Fault
) -> Level | None:
    """The level that does what both levels do. None: the decided one does, as it is."""
    if requested is Level.IN_PLACE or decided is Level.JOB:
        return None
    is_by_pods = requested is Level.POD and decided in SAME_CONTAINER | {Level.POD}
    diagnosis = Diagnosis(fault=request, ladder=(), facts=())
    if is_by_pods and exclusion(inputs, diagnosis, Level.POD) is None:
        return Level.POD
    return Level.JOB


def _below(ladder: tuple[Level, ...], level: Level) -> tuple[Level, ...]:
    return ladder[ladder.index(level) + 1 :] if level in ladder else ladder


def _remedy(inputs: DecisionInput, decision: Decision, level: Level, request: Fault) -> Remedy:
    """The remedy of the coarser level, which replaces all pods.

    It moves pods away from broken hardware only if the decided level does. Otherwise that hardware is reset.
    """
    before = decision.remedy
    coarser = remedy(
        inputs,
        decision.fault if before.places_pods else request,
        level,
        (),
        replaces=inputs.active,
        heals=before.heal,
        other_faults=decision.other_faults,
        waits_for_storage=Step.WRITABLE in before.steps,
    )
    return replace(
        coarser,
        gives_way_to=before.gives_way_to,
        evidence=before.evidence,
        grace_s=before.grace_s,
        older_than_step=before.older_than_step,
    )
