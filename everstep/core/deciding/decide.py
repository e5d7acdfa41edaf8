"""From new facts to a decision. The loop calls `decide` in a local activity, so that history has the result.

While training runs, the facts are named (`naming`) and answered (`answering`). While an incident is open, one
of three things follows: a more severe fault takes over, a failed step leads to the next level, or the level
that was interrupted is tried again. Pure: every input that the loop can make has a decision.
"""

from __future__ import annotations

from dataclasses import replace

from everstep.core.deciding import requested_restarts
from everstep.core.deciding.answering import NEW_CONTAINERS, answer
from everstep.core.deciding.decision import Decision, Fault, Isolation, Remedy
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.exclusions import exclusion
from everstep.core.deciding.naming import (
    Diagnosis,
    fact_ids,
    name_fault,
    occurrences,
    other_diagnoses,
    relevant,
    with_others,
)
from everstep.core.deciding.playbook import PRECEDENCE, name, row_for
from everstep.core.facts import (
    ALL_ENDED,
    HEAL_FAILED,
    NONE_OLDER,
    PODS_FAILED,
    STANDBY_NONE,
    STANDBY_OVER,
    START_FAILED,
    STORAGE_GIVEN_UP,
    Fact,
)
from everstep.core.levels import HEALS, RESCHEDULING, SAME_CONTAINER, FaultClass, Level, Owner


def decide(inputs: DecisionInput) -> Decision:
    """The decision for these facts. A fact that it leaves for later is counted once it is answered."""
    facts = relevant(inputs)
    decision = _decide(inputs, facts)
    answered = tuple(fact for fact in facts if fact.id not in decision.facts_for_later)
    return replace(
        decision,
        remedy=replace(decision.remedy, isolate=_with_proofs(decision.remedy, facts)),
        occurrences=occurrences(answered, inputs.policy),
    )


def _with_proofs(remedy: Remedy, facts: tuple[Fact, ...]) -> tuple[Isolation, ...]:
    """The isolations of the remedy, with those as proven whose node these facts prove to be broken.

    A device that may repair itself proves nothing.
    """
    rows = [(fact.node, row_for(fact)) for fact in facts]
    proven = {n for n, row in rows if row.proves_broken and row.cls not in HEALS}
    return tuple(replace(i, proven=i.proven or i.node in proven) for i in remedy.isolate)


def _decide(inputs: DecisionInput, facts: tuple[Fact, ...]) -> Decision:
    if inputs.incident is not None:
        return _decide_within_incident(inputs, inputs.incident.decision, facts)
    decision = answer(inputs, name_fault(inputs, facts)) if facts else _nothing_new(inputs)
    return _fail_if_idle(inputs, decision)


def _nothing_new(inputs: DecisionInput) -> Decision:
    fault = Fault(cls=FaultClass.SUBHEALTH, kind="nothing.new", at=inputs.now, owner=Owner.UNKNOWN)
    count = len(inputs.facts)
    reason = f"{count} facts were known already, late, or about nodes that are not this job's"
    return Decision(level=Level.NOTE, fault=fault, reason=reason, at=inputs.now, new_incident=False)


def _fail_if_idle(inputs: DecisionInput, decision: Decision) -> Decision:
    """End the phase instead of noting a fault when nothing runs any more."""
    failed = inputs.result == "failed"
    ended = any(fact.kind == ALL_ENDED for fact in inputs.facts)
    if decision.level is not Level.NOTE or not (failed or ended):
        return decision
    what = "the launch failed" if failed else "no rank is running any more"
    reason = f"{decision.reason}; {what}, and the answer to it is to do nothing"
    return replace(decision, level=Level.FAIL, reason=reason)


# -- Within an incident -------------------------------------------------------------------------


def _decide_within_incident(
    inputs: DecisionInput, last: Decision, facts: tuple[Fact, ...]
) -> Decision:
    """Decide while training does not run yet: a more severe fault, the next level, or the same again."""
    faults, requests = requested_restarts.split(facts)
    decision = _decide_without_requests(inputs, last, faults)
    return requested_restarts.with_requests(inputs, decision, requests)


def _decide_without_requests(
    inputs: DecisionInput, last: Decision, facts: tuple[Fact, ...]
) -> Decision:
    diagnosis = name_fault(inputs, facts) if facts else None
    failure = inputs.step_failure
    if diagnosis is not None and _takes_over(diagnosis, last.fault, has_failed=failure is not None):
        return answer(inputs, _with_unfinished(diagnosis, last))
    if failure is not None:
        return _step_down(inputs, last, facts, failure)
    return _repeat_level(inputs, last, facts)


def _takes_over(diagnosis: Diagnosis, current: Fault, *, has_failed: bool) -> bool:
    """Whether the new diagnosis is more severe than the incident's fault, or the same on another node."""
    if diagnosis.is_harmless or diagnosis.is_only_noted:
        return False
    if diagnosis.ladder_is_final and diagnosis.ends_phase:
        return True
    weight, current_weight = PRECEDENCE.index(diagnosis.fault.cls), PRECEDENCE.index(current.cls)
    is_elsewhere = diagnosis.fault.is_hardware and bool({*diagnosis.fault.nodes} - {*current.nodes})
    return weight < current_weight or (weight == current_weight and is_elsewhere and not has_failed)


def _with_unfinished(diagnosis: Diagnosis, last: Decision) -> Diagnosis:
    """The new diagnosis with the unfinished repairs of the last decision.

    If both are of one class, the ladder starts no gentler than the last level.
    """
    heals = tuple(dict.fromkeys((*diagnosis.heals, *last.remedy.heal)))
    other_faults = (*diagnosis.other_faults, *last.other_faults)
    if diagnosis.fault.cls is not last.fault.cls:
        if last.fault.is_hardware and not _was_healed(last):
            other_faults = (*other_faults, last.fault)
        return replace(diagnosis, heals=heals, other_faults=other_faults)
    ladder = diagnosis.ladder
    if last.level in ladder:
        ladder = ladder[ladder.index(last.level) :]
    fault = _with_places(diagnosis.fault, last.fault)
    return replace(diagnosis, fault=fault, ladder=ladder, heals=heals, other_faults=other_faults)


def _was_healed(last: Decision) -> bool:
    """Whether the decision heals the faulty device itself."""
    device = (last.fault.node, last.fault.device)
    return any((ref.node, ref.device) == device for ref in last.remedy.heal)


def _with_places(fault: Fault, other: Fault) -> Fault:
    """The fault with the nodes and slots of the other one, and what is proven of both."""
    if not other.is_hardware:
        return fault
    proven_nodes = tuple(dict.fromkeys((*fault.proven_nodes, *other.proven_nodes)))
    sound_nodes = dict.fromkeys((*fault.sound_nodes, *other.sound_nodes))
    return replace(
        fault,
        nodes=tuple(dict.fromkeys((*fault.nodes, *other.nodes))),
        slots=tuple(sorted({*fault.slots, *other.slots})),
        proven_nodes=proven_nodes,
        sound_nodes=tuple(node for node in sound_nodes if node not in proven_nodes),
    )


def _repeat_level(inputs: DecisionInput, last: Decision, facts: tuple[Fact, ...]) -> Decision:
    """The same level for the same fault, free of charge, as its Recovery was interrupted or lost.

    Other faults that a restart does not remove are left for the next decision.
    """
    facts_for_later = fact_ids(other_diagnoses(inputs, facts, handled=(last.fault,)))
    excluded = exclusion(inputs, Diagnosis(fault=last.fault, ladder=(), facts=()), last.level)
    if excluded is not None:
        diagnosis = Diagnosis(
            fault=last.fault,
            ladder=_levels_in_new_containers(last),
            facts=inputs.facts,
            instead_of=last.level,
            remarks=(f"{last.level} cannot be repeated: {excluded}",),
            ladder_is_final=True,
            heals=last.remedy.heal,
            other_faults=last.other_faults,
            facts_for_later=facts_for_later,
        )
        return answer(inputs, diagnosis)
    return replace(
        last,
        at=inputs.now,
        new_incident=False,
        bills={},
        counts=(),
        counts_no_progress=False,
        counts_spacing=False,
        counts_as_rollback=False,
        refused=(),
        facts_for_later=facts_for_later,
        repeats=inputs.recoveries,
        remedy=replace(last.remedy, space_s=0.0),
        reason=f"{last.level} again: {_why_again(inputs)}",
    )


def _why_again(inputs: DecisionInput) -> str:
    if inputs.result is None:
        return "the Recovery before ended without an outcome"
    return "what ended it early needs no coarser level"


# -- Going down the ladder after a step failed --------------------------------------------------


def _step_down(
    inputs: DecisionInput, last: Decision, facts: tuple[Fact, ...], failure: Fact
) -> Decision:
    """The next level for the fault of this incident. `failure`: why a step of the last one failed."""
    if failure.family == "precheck":
        return answer(inputs, _diagnosis_of_precheck(inputs, last, (failure, *facts)))
    fault = _fault_after_failure(last.fault, facts, failure)
    other_faults = last.other_faults
    if _is_heal_of_other_device(fault, failure):
        other_faults = (*other_faults, name((failure,))[0])
    failed_device = (failure.node, failure.device)
    diagnosis = Diagnosis(
        fault=fault,
        ladder=_levels_left(inputs, last, failure),
        facts=(failure, *facts),
        instead_of=last.level,
        remarks=(f"{last.level} failed: {failure.message or failure.kind}",),
        ladder_is_final=True,
        replaces=_slots_to_replace(last, failure),
        heals=tuple(ref for ref in last.remedy.heal if (ref.node, ref.device) != failed_device),
        other_faults=other_faults,
    )
    return answer(inputs, with_others(diagnosis, other_diagnoses(inputs, facts, handled=(fault,))))


def _slots_to_replace(last: Decision, failure: Fact) -> tuple[int, ...]:
    """The slot in which the step failed, and those that the last level replaced."""
    if failure.slot is None:
        return ()
    return tuple(sorted({*last.remedy.recreate, failure.slot}))


def _is_heal_of_other_device(fault: Fault, failure: Fact) -> bool:
    """Whether a device failed to heal in an incident that has another fault.

    The incident's own device heals only if its class is one that heals. Others may heal in any incident.
    """
    return failure.kind == HEAL_FAILED and fault.cls not in HEALS


def _diagnosis_of_precheck(
    inputs: DecisionInput, last: Decision, facts: tuple[Fact, ...]
) -> Diagnosis:
    """The diagnosis of a failed pre-check: its ladder (another place), then what is left of the last one."""
    diagnosis = name_fault(inputs, facts)
    below = tuple(level for level in last.ladder if level not in diagnosis.ladder)
    diagnosis = replace(diagnosis, ladder=diagnosis.ladder + below, instead_of=last.level)
    return replace(diagnosis, fault=_with_places(diagnosis.fault, last.fault))


def _fault_after_failure(fault: Fault, facts: tuple[Fact, ...], failure: Fact) -> Fault:
    """The fault after a step failed, with the nodes of new facts of its class.

    A device that failed to heal is faulty hardware, whatever caused its code. Other devices go on healing.
    """
    if failure.kind == HEAL_FAILED and not _is_heal_of_other_device(fault, failure):
        assert failure.node is not None
        is_same = (fault.node, fault.device) == (failure.node, failure.device)
        return replace(
            fault,
            node=failure.node,
            device=failure.device,
            code=fault.code if is_same else None,
            message=fault.message if is_same else failure.message,
            nodes=(failure.node,),
            owner=Owner.INFRA,
            is_hardware=True,
            proven_nodes=(failure.node,),
        )
    more = [f for f in facts if row_for(f).is_hardware and row_for(f).cls is fault.cls]
    return _with_places(fault, name(more)[0]) if more else fault


TRIES = 5
"""After so many failed steps in an incident a level that replaces pods is not repeated any more."""

NO_RESTART_HELPS = frozenset({"checkpoint.none_left", STORAGE_GIVEN_UP})
NOTHING_WAS_STOPPED = frozenset({STANDBY_NONE, STANDBY_OVER})
"""Without a backup pod that is ready the Recovery ended before it stopped any process."""

POD_OR_DEVICE_LOST = frozenset({"agent.unreachable", "pod.gone", HEAL_FAILED})
"""A step needed a pod or a device that was lost meanwhile. The level itself may work with another."""


def _levels_left(inputs: DecisionInput, last: Decision, failure: Fact) -> tuple[Level, ...]:
    """The levels to try after a step failed: the rest of the ladder, unless the failure needs another one."""
    never_ran = failure.kind in (START_FAILED, PODS_FAILED) and not inputs.runs
    # Beside another fault too storage is waited for once, as long as the document allows.
    is_storage = failure.family == "storage" and last.fault.cls is not FaultClass.STORAGE
    if never_ran or is_storage or failure.kind in NO_RESTART_HELPS:
        return (Level.FAIL,)
    if failure.kind in NOTHING_WAS_STOPPED:  # training goes on
        return (Level.NOTE,)
    # The limit of a rollback leaves no checkpoint. The rollback is over; another level that kept its limit
    # is repeated from the newest checkpoint.
    if failure.kind == NONE_OLDER:
        return last.ladder if last.level is Level.ROLLBACK else (last.level, *last.ladder)
    if failure.kind not in POD_OR_DEVICE_LOST:
        return last.ladder
    # A rollback that is repeated leaves the device that did not heal.
    leaves_device = failure.kind == HEAL_FAILED and last.level is Level.ROLLBACK
    if (last.level in RESCHEDULING or leaves_device) and _may_repeat(inputs, last, failure):
        return (last.level, *last.ladder)
    return last.ladder if failure.kind == HEAL_FAILED else _levels_in_new_containers(last)


def _may_repeat(inputs: DecisionInput, last: Decision, failure: Fact) -> bool:
    """Whether the same level gets another try with new pods, for a limited number of times.

    One that waited for an unreachable agent would wait for it again, so a coarser level goes first.
    """
    failed_steps = 0 if inputs.incident is None else inputs.incident.failures
    waits_again = failure.kind == "agent.unreachable" and bool(last.ladder)
    return failed_steps < TRIES and not waits_again


def _levels_in_new_containers(last: Decision) -> tuple[Level, ...]:
    """The levels left if the container cannot be used: replace it before anything coarser."""
    if last.level not in SAME_CONTAINER or Level.POD in last.ladder:
        return last.ladder
    new_containers = (Level.POD,) if Level.JOB in last.ladder else NEW_CONTAINERS
    return (*new_containers, *last.ladder)
