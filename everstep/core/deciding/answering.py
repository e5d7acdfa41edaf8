"""The answer to a fault that has a name: the level that can apply and can be afforded, written down.

The ladder is walked from the top; a level that cannot apply is passed over, one that a budget refuses
is recorded as refused, and where the ladder ends the phase fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from everstep.core.bounds import SAID_MOST, cut
from everstep.core.deciding import budgets, number_check, run_ends
from everstep.core.deciding.decision import Decision, Fault, Refusal
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.hindrances import hindrance
from everstep.core.deciding.naming import Named, lines, row_of
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
    """What was met on the way down the ladder."""

    passed_over: list[tuple[Level, str]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def answer(given: DecisionInput, named: Named) -> Decision:
    """The first level of the ladder that can apply and may be afforded."""
    if named.is_harmless:
        why = f"{named.fault.message}; noted, nothing has to be done"
        return _decision(given, named, Level.NOTE, (), why)
    ended = _runs_in_vain(given, named)
    if ended is not None:
        return _decision(given, named, Level.FAIL, (), ended)
    numbers = number_check.judged(given, named)
    if numbers.why:
        named = replace(named, remarks=(*named.remarks, numbers.why))
    else:
        named = with_suspicion(given, named)
    if numbers.ends:
        named = replace(named, ladder=(Level.FAIL,), is_fixed=True, is_asked=True)
    walk = _Walk()
    decision = _first_affordable(given, named, walk)
    return replace(
        decision,
        checking=numbers.checking if decision.is_executed else None,
        passed_over=_gentler(walk.passed_over, named.ladder, decision.level),
        refused=tuple(walk.refused),
    )


def _gentler(
    passed_over: list[tuple[Level, str]], ladder: tuple[Level, ...], chosen: Level
) -> tuple[str, ...]:
    """What was passed over before the level that was chosen; the rest was never asked about."""
    end = ladder.index(chosen) if chosen in ladder else len(ladder)
    return tuple(f"{level}: {why}" for level, why in passed_over if ladder.index(level) < end)


def _first_affordable(given: DecisionInput, named: Named, walk: _Walk) -> Decision:
    rungs = _rungs(given, named, walk.passed_over)
    for level in rungs:
        if _refused(given, named, level, walk):
            continue
        ended = _series_ended(given, named, level)
        if ended is not None:
            return _decision(given, named, Level.FAIL, (), ended)
        why = _why(given, named, level, walk)
        return _decision(given, named, level, _rest(named.ladder, rungs, level), why)
    return _decision(given, named, Level.FAIL, (), _why(given, named, Level.FAIL, walk))


def _rest(ladder: tuple[Level, ...], rungs: tuple[Level, ...], level: Level) -> tuple[Level, ...]:
    """What is left below: all of it, for what cannot apply now may apply then.

    A level that is no part of the ladder was put before it, with others that are left.
    """
    known = ladder if level in ladder else rungs
    return known[known.index(level) + 1 :]


def _rungs(
    given: DecisionInput, named: Named, passed_over: list[tuple[Level, str]]
) -> tuple[Level, ...]:
    """The levels that can apply; a class that came again without progress starts further down."""
    able: list[Level] = []
    for level in named.ladder:
        hindered = hindrance(given, named, level)
        if hindered is None:
            able.append(level)
        else:
            passed_over.append((level, hindered))
    has_to_move = bool(given.gone or named.beside)
    if not able and not named.is_fixed and has_to_move and SAME_CONTAINER & {*named.ladder}:
        # Nothing else is wrong: other containers are all that is needed.
        able = [level for level in NEW_CONTAINERS if hindrance(given, named, level) is None]
    offset = 0 if named.is_fixed else _escalation(given, named.fault)
    first = 1 if named.leaves else 0
    start = first + min(offset, max(len(able) - first - 1, 0))
    passed_over.extend((level, "tried already without progress") for level in able[first:start])
    return (*able[:first], *able[start:])


def _escalation(given: DecisionInput, fault: Fault) -> int:
    policy = given.policy
    if not policy.escalates or fault.cls in NEVER_BILLED or given.incident is not None:
        return 0
    return given.escalation.get(fault.cls, 0)


def _runs_in_vain(given: DecisionInput, named: Named) -> str | None:
    """The sentence that ends a phase whose next run would get nowhere, or would begin from nothing."""
    is_open = given.incident is not None or named.fault.cls in NEVER_BILLED
    if is_open or named.ladder[:1] in ((Level.NOTE,), (Level.FAIL,)):
        return None
    return _nothing_saved(given, named) or _no_progress_left(given, named)


def _nothing_saved(given: DecisionInput, named: Named) -> str | None:
    """Storage that cannot be written is waited for: that says nothing of the run."""
    is_of_the_run = named.fault.cls is not FaultClass.STORAGE and not named.is_asked
    needs_one = given.policy.needs_checkpoint and given.runs > 0 and is_of_the_run
    if not needs_one or given.saved is not None:
        return None
    return f"{_head(named.fault)}; no checkpoint in {given.saves_to} yet: nothing to restart from"


def _no_progress_left(given: DecisionInput, named: Named) -> str | None:
    policy, done = given.policy, given.no_progress
    limit = policy.no_progress_restarts
    counts = named.fault.owner in policy.no_progress_owners and named.bad_size is None
    if limit is None or not counts or done < limit:
        return None
    what = f"no progress after {done} {'restart' if done == 1 else 'restarts'}"
    if policy.only_checkpoints:
        newest = "none was saved" if given.saved is None else f"the newest is {given.saved.name}"
        what += f", no new checkpoint ({newest})"
    return f"{what}; the last: {named.fault.message}"


def _refused(given: DecisionInput, named: Named, level: Level, walk: _Walk) -> bool:
    """Whether a budget has no unit left for this level; the refusal is kept."""
    bill = _bill(given, named.fault, level)
    empty = budgets.exhausted(bill, given.used, given.limits)
    if empty is not None:
        walk.refused.append(Refusal(level=level, budget=empty.name))
    return empty is not None


def _bill(given: DecisionInput, fault: Fault, level: Level) -> tuple[Budget, ...]:
    known = given.policy.budgets
    return budgets.matching(known, level=level, owner=fault.owner, cls=fault.cls)


def _series_ended(given: DecisionInput, named: Named, level: Level) -> str | None:
    """The sentence that fails the phase if this restart would be one too many in a row."""
    for series in _series(given, named, level):
        done = given.series.get(series.name, 0)
        if done >= series.limit:
            return f"{done} {series.name} restarts in a row did not help; {named.fault.message}"
    return None


def _series(given: DecisionInput, named: Named, level: Level) -> tuple[Series, ...]:
    """The series that a restart counts in; one that follows a failed pod level counts in none."""
    if named.instead_of is Level.POD or named.fault.cls in NEVER_BILLED:
        return ()
    known = given.policy.series
    return budgets.in_series(known, level=level, owner=named.fault.owner)


# -- Writing the answer down --------------------------------------------------------------------


ENDS_BEHIND = (Level.FAIL, Level.ROLLBACK)


def _why(given: DecisionInput, named: Named, level: Level, walk: _Walk) -> str:
    parts = [_head(named.fault), *named.remarks]
    parts += [f"{r.level} refused, budget {r.budget} is used up" for r in walk.refused]
    if not (named.is_asked and named.ladder[:1] == (level,)):  # nobody needs to hear why they asked
        parts.append(f"{level} {_CHOICE.get(level, 'is the gentlest level that can work')}")
        parts += [why for over, why in walk.passed_over if (level, over) == ENDS_BEHIND]
    own = row_of(given, named.fault)
    if level is Level.FAIL and own.why and named.ladder == own.levels and not named.is_fixed:
        parts.append(own.why)
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
    given: DecisionInput, named: Named, level: Level, rest: tuple[Level, ...], reason: str
) -> Decision:
    fault = named.fault
    run_end = run_ends.run_end(given, named.facts) if given.incident is None else None
    in_common = run_ends.in_common(given, run_end) if level is Level.FAIL else None
    plain = Decision(
        level=level,
        fault=fault,
        reason=reason if in_common is None else f"{reason}; {in_common}",
        at=given.now,
        new_incident=given.incident is None,
        ladder=rest,
        instead_of=named.instead_of,
        occurrences=named.occurrences,
        seen=lines(named.facts) or (given.incident.decision.seen if given.incident else ()),
        waiting_for=_waiting_for(fault),
        run_end=run_end,
        bad_size=named.bad_size,
    )
    if not plain.is_executed:
        return plain
    what = remedy(
        given,
        fault,
        level,
        named.facts,
        replaces=named.replaces,
        heals=named.heals,
        beside=named.beside,
        is_resized=named.bad_size is not None,
    )
    # No number of nodes is tried again: that ends by itself.
    lost_work = fault.cls not in NEVER_BILLED and plain.new_incident and named.bad_size is None
    return replace(
        plain,
        steps=what.steps,
        bills={budget.name: 1 for budget in _bill(given, fault, level)},
        counts=tuple(series.name for series in _series(given, named, level)),
        counts_no_progress=lost_work and fault.owner in given.policy.no_progress_owners,
        counts_spacing=lost_work,
        counts_back=level is Level.ROLLBACK and fault.cls is not FaultClass.CHECKPOINT,
        isolate=what.isolate,
        avoid=what.avoid,
        recreate=what.recreate,
        heal=what.heal,
        beside=named.beside,
        later=named.later,
        gives_way_to=what.gives_way_to,
        evidence=what.evidence,
        grace_s=what.grace_s,
        space_s=what.space_s,
        older_than_step=what.older_than_step,
    )


def _waiting_for(fault: Fault) -> str | None:
    if fault.cls is not FaultClass.UNREACHABLE:
        return None
    return f"an answer from {', '.join(fault.nodes) or 'the agents'}"
