"""From a diagnosis to a decision: choose the level, and say why. `decide` calls `answer`.

The ladder is walked from the top. A level that cannot apply is passed over, a level without budget is
recorded as refused, and at the end of the ladder the phase fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from everstep.core.bounds import SAID_MOST, cut
from everstep.core.deciding import budgets, number_check, run_ends
from everstep.core.deciding.decision import Decision, Fault, Refusal
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.hindrances import hindrance
from everstep.core.deciding.naming import Diagnosis, lines, row_of
from everstep.core.deciding.remedies import remedy
from everstep.core.deciding.suspicion import with_suspicion
from everstep.core.levels import (
    NEVER_BILLED,
    SAME_CONTAINER,
    FaultClass,
    Level,
)
from everstep.core.spec import Budget, Series

NEW_CONTAINERS = (Level.POD, Level.JOB)


# -- Walking the ladder -------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Levels that were passed over or refused on the way down the ladder."""

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
    numbers = number_check.judged(inputs, diagnosis)
    if numbers.why:
        diagnosis = replace(diagnosis, remarks=(*diagnosis.remarks, numbers.why))
    else:
        diagnosis = with_suspicion(inputs, diagnosis)
    if numbers.ends:
        diagnosis = replace(diagnosis, ladder=(Level.FAIL,), is_fixed=True, is_asked=True)
    walk = _Walk()
    decision = _first_affordable(inputs, diagnosis, walk)
    return replace(
        decision,
        checking=numbers.checking if decision.is_executed else None,
        passed_over=_gentler(walk.passed_over, diagnosis.ladder, decision.level),
        refused=tuple(walk.refused),
    )


def _gentler(
    passed_over: list[tuple[Level, str]], ladder: tuple[Level, ...], chosen: Level
) -> tuple[str, ...]:
    """The levels passed over before the chosen one, with their reasons.

    A level that is not on the ladder was tried before the ladder began.
    """
    end = ladder.index(chosen) if chosen in ladder else len(ladder)
    return tuple(
        f"{level}: {why}"
        for level, why in passed_over
        if level not in ladder or ladder.index(level) < end
    )


def _first_affordable(inputs: DecisionInput, diagnosis: Diagnosis, walk: _Walk) -> Decision:
    rungs = _rungs(inputs, diagnosis, walk.passed_over)
    for level in rungs:
        if _refused(inputs, diagnosis, level, walk):
            continue
        series_end = _series_end(inputs, diagnosis, level)
        if series_end is not None:
            return _decision(inputs, diagnosis, Level.FAIL, (), series_end)
        why = _why(inputs, diagnosis, level, walk)
        return _decision(inputs, diagnosis, level, _rest(diagnosis.ladder, rungs, level), why)
    return _decision(inputs, diagnosis, Level.FAIL, (), _why(inputs, diagnosis, Level.FAIL, walk))


def _rest(ladder: tuple[Level, ...], rungs: tuple[Level, ...], level: Level) -> tuple[Level, ...]:
    """The levels below the chosen one, as one that cannot apply now may apply then.

    If the chosen level is not on the ladder, those levels that were put in front of it remain.
    """
    levels = ladder if level in ladder else rungs
    return levels[levels.index(level) + 1 :]


def _rungs(
    inputs: DecisionInput, diagnosis: Diagnosis, passed_over: list[tuple[Level, str]]
) -> tuple[Level, ...]:
    """The levels that can apply, without the first ones where the class came again without progress.

    One is left out for each restart of the class, whatever levels those were of.
    """
    able: list[Level] = []
    for level in diagnosis.ladder:
        hindered = hindrance(inputs, diagnosis, level)
        if hindered is None:
            able.append(level)
        else:
            passed_over.append((level, hindered))
    has_to_move = bool(inputs.gone or diagnosis.beside)
    if not able and not diagnosis.is_fixed and has_to_move and SAME_CONTAINER & {*diagnosis.ladder}:
        # New containers are all that is needed.
        able = [level for level in NEW_CONTAINERS if hindrance(inputs, diagnosis, level) is None]
    # The rollback in front of the ladder, and the last level, are never left out.
    front = 1 if diagnosis.begins_with_rollback else 0
    head, rest = able[:front], able[front:]
    restarts = 0 if diagnosis.is_fixed else _escalation(inputs, diagnosis.fault)
    left_out = min(restarts, max(len(rest) - 1, 0))
    why = _further_down(diagnosis.fault, restarts=restarts)
    passed_over.extend((level, why) for level in rest[:left_out])
    return (*head, *rest[left_out:])


def _further_down(fault: Fault, *, restarts: int) -> str:
    """Why a level is left out. It need not be one that those restarts were of: others can apply now."""
    times = f"{restarts} restart{'' if restarts == 1 else 's'}"
    return f"after {times} for {fault.cls} without progress the ladder starts further down"


def _escalation(inputs: DecisionInput, fault: Fault) -> int:
    policy = inputs.policy
    if not policy.escalates or fault.cls in NEVER_BILLED or inputs.incident is not None:
        return 0
    return inputs.escalation.get(fault.cls, 0)


def _why_next_run_is_useless(inputs: DecisionInput, diagnosis: Diagnosis) -> str | None:
    """The sentence that ends a phase whose next run would get nowhere, or would begin from nothing."""
    is_free = inputs.incident is not None or diagnosis.fault.cls in NEVER_BILLED
    if is_free or diagnosis.ladder[:1] in ((Level.NOTE,), (Level.FAIL,)):
        return None
    return _nothing_saved(inputs, diagnosis) or _no_progress_left(inputs, diagnosis)


def _nothing_saved(inputs: DecisionInput, diagnosis: Diagnosis) -> str | None:
    """Storage that cannot be written is waited for: that says nothing of the run."""
    is_of_the_run = diagnosis.fault.cls is not FaultClass.STORAGE and not diagnosis.is_asked
    needs_one = inputs.policy.needs_checkpoint and inputs.runs > 0 and is_of_the_run
    if not needs_one or inputs.saved is not None:
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


def _refused(inputs: DecisionInput, diagnosis: Diagnosis, level: Level, walk: _Walk) -> bool:
    """Whether a budget has no unit left for this level; the refusal is kept."""
    bill = _bill(inputs, diagnosis.fault, level)
    empty = budgets.exhausted(bill, inputs.used, inputs.limits)
    if empty is not None:
        walk.refused.append(Refusal(level=level, budget=empty.name))
    return empty is not None


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
    """The series that a restart counts in; one that follows a failed pod level counts in none."""
    if diagnosis.instead_of is Level.POD or diagnosis.fault.cls in NEVER_BILLED:
        return ()
    available = inputs.policy.series
    return budgets.in_series(available, level=level, owner=diagnosis.fault.owner)


# -- Writing the answer down --------------------------------------------------------------------


def _why(inputs: DecisionInput, diagnosis: Diagnosis, level: Level, walk: _Walk) -> str:
    parts = [_head(diagnosis.fault), *diagnosis.remarks]
    parts += [f"{r.level} refused, budget {r.budget} is used up" for r in walk.refused]
    is_requested = diagnosis.is_asked and diagnosis.ladder[:1] == (level,)
    if not is_requested:  # the request itself is the reason
        parts.append(f"{level} {_CHOICE.get(level, 'is the gentlest level that can work')}")
        if level is Level.FAIL:  # why not back to an older checkpoint, before the phase ends
            parts += [why for passed, why in walk.passed_over if passed is Level.ROLLBACK]
    row = row_of(inputs, diagnosis.fault)
    is_by_row = diagnosis.ladder == row.levels and not diagnosis.is_fixed
    if level is Level.FAIL and row.why and is_by_row:
        parts.append(row.why)
    return "; ".join(parts)


def _head(fault: Fault) -> str:
    """`node on n1 and 1 more: n1 is down`, `crash of rank 3: exit code 1`."""
    more = len(fault.nodes) - 1
    label = f"{fault.label} and {more} more" if more > 0 and fault.rank is None else fault.label
    return f"{label}: {cut(fault.message, SAID_MOST)}" if fault.message else label


_CHOICE = {
    Level.NOTE: "only: nothing is stopped",
    Level.FAIL: "because no other level is left",
}


def _decision(
    inputs: DecisionInput, diagnosis: Diagnosis, level: Level, rest: tuple[Level, ...], reason: str
) -> Decision:
    fault = diagnosis.fault
    run_end = run_ends.run_end(inputs, diagnosis.facts) if inputs.incident is None else None
    in_common = run_ends.in_common(inputs, run_end) if level is Level.FAIL else None
    plain = Decision(
        level=level,
        fault=fault,
        reason=reason if in_common is None else f"{reason}; {in_common}",
        at=inputs.now,
        new_incident=inputs.incident is None,
        ladder=rest,
        instead_of=diagnosis.instead_of,
        seen=lines(diagnosis.facts) or (inputs.incident.decision.seen if inputs.incident else ()),
        waiting_for=_waiting_for(fault),
        run_end=run_end,
        bad_size=diagnosis.bad_size,
    )
    if not plain.is_executed:
        return plain
    chosen = remedy(
        inputs,
        fault,
        level,
        diagnosis.facts,
        replaces=diagnosis.replaces,
        heals=diagnosis.heals,
        beside=diagnosis.beside,
        is_resized=diagnosis.bad_size is not None,
    )
    # A number of nodes that does not work is never tried again, so such restarts end without a limit.
    is_new_loss = (
        plain.new_incident and fault.cls not in NEVER_BILLED and diagnosis.bad_size is None
    )
    return replace(
        plain,
        remedy=chosen,
        bills={budget.name: 1 for budget in _bill(inputs, fault, level)},
        counts=tuple(series.name for series in _series(inputs, diagnosis, level)),
        counts_no_progress=is_new_loss and fault.owner in inputs.policy.no_progress_owners,
        counts_spacing=is_new_loss,
        counts_back=level is Level.ROLLBACK and fault.cls is not FaultClass.CHECKPOINT,
        beside=diagnosis.beside,
        later=diagnosis.later,
    )


def answer_from(nodes: Iterable[str]) -> str:
    """What a job with these unreachable nodes waits for."""
    return f"an answer from {', '.join(nodes) or 'the agents'}"


def _waiting_for(fault: Fault) -> str | None:
    if fault.cls is not FaultClass.UNREACHABLE:
        return None
    return answer_from(fault.nodes)
