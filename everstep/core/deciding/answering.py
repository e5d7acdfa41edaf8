"""From a diagnosis to a decision: choose the level, and say why. `decide` calls `answer`.

The ladder is walked from the top. A level that cannot apply is passed over, a level without budget is
recorded as refused, and at the end of the ladder the phase fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile

from everstep.core.bounds import MESSAGE_IN_REASON_MOST, cut
from everstep.core.deciding import budgets, number_check, run_ends
from everstep.core.deciding.decision import Decision, Fault, Refusal, Remedy
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.end_causes import ELSEWHERE
from everstep.core.deciding.exclusions import exclusion
from everstep.core.deciding.naming import Diagnosis, ladder_row, lines, places_pods
from everstep.core.deciding.remedies import isolations, leaves_node, remedy
from everstep.core.deciding.suspicion import with_suspicion
from everstep.core.levels import (
    KEEPING,
    NEVER_BILLED,
    RESCHEDULING,
    SAME_CONTAINER,
    FaultClass,
    Level,
)
from everstep.core.spec import Budget, Series
from everstep.core.waits import WaitCause, WaitKind

NEW_CONTAINERS = (Level.POD, Level.JOB)


# -- Walking the ladder -------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Skipped:
    """Levels that were passed over or refused on the way down the ladder.

    Filled by `_applicable`, `_without_gentlest` and `_first_affordable`.
    """

    passed_over: list[tuple[Level, str]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def answer(inputs: DecisionInput, diagnosis: Diagnosis) -> Decision:
    """Decide for the first level of the ladder that can apply and has a budget."""
    if diagnosis.is_harmless:
        why = f"{diagnosis.fault.message}; noted, nothing has to be done"
        return _decision(inputs, diagnosis, Level.NOTE, (), why)
    no_use = _why_next_run_is_useless(inputs, diagnosis)
    if no_use is not None:
        return _decision(inputs, diagnosis, Level.FAIL, (), no_use)
    numeric = number_check.judge(inputs, diagnosis)
    if numeric.why:
        diagnosis = replace(diagnosis, remarks=(*diagnosis.remarks, numeric.why))
    else:  # a node that computes wrong numbers is not the cause: the newest checkpoint may be
        diagnosis = with_suspicion(inputs, diagnosis)
    if numeric.ends:  # checks found no node: another run would end the same way
        diagnosis = replace(
            diagnosis, ladder=(Level.FAIL,), ladder_is_final=True, is_requested=True
        )
    skipped = _Skipped()
    decision = _first_affordable(inputs, diagnosis, skipped)
    return replace(
        decision,
        checking=numeric.checking if decision.is_executed else None,
        passed_over=_gentler(skipped.passed_over, diagnosis.ladder, decision.level),
        refused=tuple(skipped.refused),
    )


def _gentler(
    passed_over: list[tuple[Level, str]], ladder: tuple[Level, ...], chosen: Level
) -> tuple[str, ...]:
    """The levels passed over before the chosen one, with their reasons.

    A level with new containers that `_applicable` added is not on the ladder. If `_without_gentlest` left it
    out, it came before the chosen one.
    """
    end = ladder.index(chosen) if chosen in ladder else len(ladder)
    return tuple(
        f"{level}: {why}"
        for level, why in passed_over
        if level not in ladder or ladder.index(level) < end
    )


def _first_affordable(inputs: DecisionInput, diagnosis: Diagnosis, skipped: _Skipped) -> Decision:
    levels = _levels_to_try(inputs, diagnosis, skipped)
    for level in levels:
        empty_budget = _empty_budget(inputs, diagnosis.fault, level)
        if empty_budget is not None:
            skipped.refused.append(Refusal(level=level, budget=empty_budget.name))
            continue
        series_end = _series_end(inputs, diagnosis, level)
        if series_end is not None:
            return _decision(inputs, diagnosis, Level.FAIL, (), series_end)
        # A level that cannot apply now may apply if this one fails: the whole ladder below it is kept.
        # New containers that replaced the ladder are no levels of it.
        ladder = diagnosis.ladder if level in diagnosis.ladder else levels
        levels_below = ladder[ladder.index(level) + 1 :]
        why = _why(inputs, diagnosis, level, skipped)
        return _decision(inputs, diagnosis, level, levels_below, why)
    why = _why(inputs, diagnosis, Level.FAIL, skipped)
    return _decision(inputs, diagnosis, Level.FAIL, (), why)


def _levels_to_try(
    inputs: DecisionInput, diagnosis: Diagnosis, skipped: _Skipped
) -> tuple[Level, ...]:
    """The levels that can apply, without the gentlest where restarts of the class brought no progress."""
    applicable = _applicable(inputs, diagnosis, skipped)
    if diagnosis.begins_with_rollback and applicable[:1] == (Level.ROLLBACK,):
        return (Level.ROLLBACK, *_without_gentlest(inputs, diagnosis, applicable[1:], skipped))
    return _without_gentlest(inputs, diagnosis, applicable, skipped)


def _applicable(
    inputs: DecisionInput, diagnosis: Diagnosis, skipped: _Skipped
) -> tuple[Level, ...]:
    """The levels of the ladder that nothing excludes; if there are none, perhaps those with new containers.

    That is so if the ladder has levels that keep the containers, and a container is gone or is on other
    broken hardware, which has to be left.
    """
    exclusions = [(level, exclusion(inputs, diagnosis, level)) for level in diagnosis.ladder]
    skipped.passed_over.extend((level, why) for level, why in exclusions if why is not None)
    applicable = tuple(level for level, why in exclusions if why is None)
    has_to_move = bool(inputs.lost_containers or diagnosis.other_faults)
    keeps_containers = bool(SAME_CONTAINER & {*diagnosis.ladder})
    if applicable or diagnosis.ladder_is_final or not (has_to_move and keeps_containers):
        return applicable
    return tuple(new for new in NEW_CONTAINERS if exclusion(inputs, diagnosis, new) is None)


def _without_gentlest(
    inputs: DecisionInput, diagnosis: Diagnosis, levels: tuple[Level, ...], skipped: _Skipped
) -> tuple[Level, ...]:
    """Leave out a level for each restart of the class without progress, but never the last level.

    These need not be the levels of those restarts: other ones can apply now. A document that does not
    escalate has budgets in place of that, but none for levels that keep processes: those are left out.
    """
    restarts = _restarts_without_progress(inputs, diagnosis)
    gentlest = levels if inputs.policy.escalates else tuple(takewhile(KEEPING.__contains__, levels))
    left_out = min(restarts, len(gentlest), max(len(levels) - 1, 0))
    times = f"{restarts} restart{'' if restarts == 1 else 's'}"
    cls = diagnosis.fault.cls
    why = f"after {times} for {cls} without progress the ladder starts further down"
    skipped.passed_over.extend((level, why) for level in levels[:left_out])
    return _on_other_nodes(inputs, diagnosis, levels[left_out:], skipped)


def _on_other_nodes(
    inputs: DecisionInput, diagnosis: Diagnosis, levels: tuple[Level, ...], skipped: _Skipped
) -> tuple[Level, ...]:
    """The levels but for those that stay on a node where runs ended again and again since a checkpoint."""
    fault = diagnosis.fault
    is_open = inputs.incident is not None or diagnosis.ladder_is_final
    if is_open or not leaves_node(inputs, fault) or not RESCHEDULING & {*levels}:
        return levels
    staying_levels = SAME_CONTAINER | KEEPING if inputs.policy.escalates else KEEPING
    staying = tuple(takewhile(staying_levels.__contains__, levels))
    times = inputs.by_node[fault.node or ""]
    why = f"{times} runs ended on {fault.node} since the last checkpoint"
    skipped.passed_over.extend((level, why) for level in staying)
    return levels[len(staying) :]


def _restarts_without_progress(inputs: DecisionInput, diagnosis: Diagnosis) -> int:
    """How many restarts of this class in a row count against its gentlest levels."""
    cls = diagnosis.fault.cls
    is_counted = cls not in NEVER_BILLED and inputs.incident is None
    return inputs.escalation.get(cls, 0) if is_counted and not diagnosis.ladder_is_final else 0


def _why_next_run_is_useless(inputs: DecisionInput, diagnosis: Diagnosis) -> str | None:
    """The sentence that ends a phase whose next run would get nowhere, or would begin from nothing."""
    is_free = inputs.incident is not None or diagnosis.fault.cls in NEVER_BILLED
    if is_free or diagnosis.is_only_noted or diagnosis.ends_phase:
        return None
    return _nothing_saved(inputs, diagnosis) or _no_progress_left(inputs, diagnosis)


def _nothing_saved(inputs: DecisionInput, diagnosis: Diagnosis) -> str | None:
    """The sentence that ends a phase without a checkpoint whose document does not let it start over.

    After a fault of storage, or on request, it goes on: that says nothing of the run.
    """
    goes_on = diagnosis.fault.cls is FaultClass.STORAGE or diagnosis.is_requested
    needs_checkpoint = inputs.policy.needs_checkpoint and inputs.runs > 0 and not goes_on
    if not needs_checkpoint or inputs.saved is not None:
        return None
    return (
        f"{_head(diagnosis.fault)}; no checkpoint in {inputs.saves_to} yet: nothing to restart from"
    )


def _no_progress_left(inputs: DecisionInput, diagnosis: Diagnosis) -> str | None:
    policy, done = inputs.policy, inputs.no_progress
    limit = policy.no_progress_restarts
    counts = diagnosis.fault.owner in policy.no_progress_owners and diagnosis.bad_size is None
    if limit is None or not counts or done < limit:
        return None
    what = f"no progress after {done} {'restart' if done == 1 else 'restarts'}"
    if policy.only_checkpoints:
        newest = "none was saved" if inputs.saved is None else f"the newest is {inputs.saved.name}"
        what += f", no new checkpoint ({newest})"
    return f"{what}; the last: {diagnosis.fault.message}"


def _empty_budget(inputs: DecisionInput, fault: Fault, level: Level) -> Budget | None:
    """The budget that has no unit left for this level, if there is one."""
    return budgets.exhausted(_bill(inputs, fault, level), inputs.used, inputs.limits)


def _bill(inputs: DecisionInput, fault: Fault, level: Level) -> tuple[Budget, ...]:
    available = inputs.policy.budgets
    return budgets.matching(available, level=level, owner=fault.owner, cls=fault.cls)


def _series_end(inputs: DecisionInput, diagnosis: Diagnosis, level: Level) -> str | None:
    """The sentence that fails the phase if this restart would be one too many in a row."""
    for series in _series(inputs, diagnosis, level):
        done = inputs.series.get(series.name, 0)
        if done >= series.limit:
            return f"{done} {series.name} restarts in a row did not help; {diagnosis.fault.message}"
    return None


def _series(inputs: DecisionInput, diagnosis: Diagnosis, level: Level) -> tuple[Series, ...]:
    """The series in which a restart counts.

    No series after a failed `pod` (`instead_of`): its restart was counted, and goes on with the next level.
    """
    if diagnosis.instead_of is Level.POD or diagnosis.fault.cls in NEVER_BILLED:
        return ()
    available = inputs.policy.series
    return budgets.in_series(available, level=level, owner=diagnosis.fault.owner)


# -- Writing the answer down --------------------------------------------------------------------


def _why(inputs: DecisionInput, diagnosis: Diagnosis, level: Level, skipped: _Skipped) -> str:
    parts = [_head(diagnosis.fault), *diagnosis.remarks]
    if diagnosis.elsewhere_helps and level in RESCHEDULING:
        parts.append(ELSEWHERE)
    parts += [f"{r.level} refused, budget {r.budget} is used up" for r in skipped.refused]
    is_as_requested = diagnosis.is_requested and diagnosis.ladder[:1] == (level,)
    if not is_as_requested:  # the remarks have the request, which is the reason
        parts.append(f"{level} {_CHOICE.get(level, 'is the gentlest level that can work')}")
        if level is Level.FAIL:  # why not back to an older checkpoint, before the phase ends
            parts += [why for passed, why in skipped.passed_over if passed is Level.ROLLBACK]
    row = ladder_row(inputs, diagnosis.fault)
    is_by_row = diagnosis.ladder == row.levels and not diagnosis.ladder_is_final
    if level is Level.FAIL and row.why and is_by_row:
        parts.append(row.why)
    return "; ".join(parts)


def _head(fault: Fault) -> str:
    """`node on n1 and 1 more: n1 is down`, `crash of rank 3: exit code 1`."""
    more = len(fault.nodes) - 1
    label = f"{fault.label} and {more} more" if more > 0 and fault.rank is None else fault.label
    return f"{label}: {cut(fault.message, MESSAGE_IN_REASON_MOST)}" if fault.message else label


_CHOICE = {
    Level.NOTE: "only: nothing is stopped",
    Level.FAIL: "because no other level is left",
}


def _decision(
    inputs: DecisionInput,
    diagnosis: Diagnosis,
    level: Level,
    levels_below: tuple[Level, ...],
    reason: str,
) -> Decision:
    fault = diagnosis.fault
    run_end = run_ends.run_end(inputs, diagnosis.facts) if inputs.incident is None else None
    in_common = run_ends.in_common(inputs, run_end) if level is Level.FAIL else None
    decision = Decision(
        level=level,
        fault=fault,
        reason=reason if in_common is None else f"{reason}; {in_common}",
        at=inputs.now,
        new_incident=inputs.incident is None,
        ladder=levels_below,
        instead_of=diagnosis.instead_of,
        seen=lines(diagnosis.facts) or (inputs.incident.decision.seen if inputs.incident else ()),
        waiting_for=_waiting_for(fault),
        run_end=run_end,
        bad_size=diagnosis.bad_size,
    )
    # The phase ends. Its faulty nodes are isolated all the same, if a restart was tried and failed, or if the
    # ladder began with a level that places pods: it would have isolated them, but could not be used.
    if level is Level.FAIL and (inputs.incident is not None or places_pods(diagnosis)):
        isolate = isolations(inputs, (fault, *diagnosis.other_faults))
        return replace(decision, remedy=Remedy(isolate=isolate))
    if not decision.is_executed:
        return decision
    chosen_remedy = remedy(
        inputs,
        fault,
        level,
        diagnosis.facts,
        replaces=diagnosis.replaces,
        heals=diagnosis.heals,
        other_faults=diagnosis.other_faults,
        is_resized=diagnosis.bad_size is not None,
        waits_for_storage=diagnosis.waits_for_storage,
    )
    # A number of nodes that does not work is never tried again, so such restarts end without a limit.
    counts_as_failure = (
        decision.new_incident and fault.cls not in NEVER_BILLED and diagnosis.bad_size is None
    )
    return replace(
        decision,
        remedy=chosen_remedy,
        bills={budget.name: 1 for budget in _bill(inputs, fault, level)},
        counts=tuple(series.name for series in _series(inputs, diagnosis, level)),
        counts_no_progress=counts_as_failure and fault.owner in inputs.policy.no_progress_owners,
        counts_spacing=counts_as_failure,
        counts_as_rollback=level is Level.ROLLBACK and fault.cls is not FaultClass.CHECKPOINT,
        other_faults=diagnosis.other_faults,
        facts_for_later=diagnosis.facts_for_later,
    )


def wait_for_nodes(nodes: Iterable[str]) -> WaitCause:
    """What a job with these unreachable nodes waits for."""
    return WaitKind.ANSWERS.of(", ".join(nodes) or "the agents")


def _waiting_for(fault: Fault) -> str | None:
    if fault.cls is not FaultClass.UNREACHABLE:
        return None
    return wait_for_nodes(fault.nodes).sentence
