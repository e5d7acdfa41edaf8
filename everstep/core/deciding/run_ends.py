"""How runs of all processes ended: before any step, or one like the other.

They are shown in records and in the reason that ends a phase. The rules that read them are `suspicion` and
the one about imports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from everstep.core.deciding.decision import Decision, RunEnd
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.end_causes import cause_in
from everstep.core.facts import Fact
from everstep.core.levels import Level
from everstep.core.state import JobState, with_ledger
from everstep.protocol.exits import Exit

ENDED = frozenset({"process", "agent", "pod", "node"})
"""Families of facts after which processes are not there any more."""

BEFORE_A_STEP = "before a step"
BEFORE_ONE_WAS_SEEN = "before a step was seen"
"""Where a run of a job ended that never showed a step: it may have made some."""

ALIKE_TIMES = 3
EXCEPTION_KEPT = 200
VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")


def run_end(inputs: DecisionInput, facts: Iterable[Fact]) -> RunEnd | None:
    """How the run under way ended, if these facts say that it did."""
    ends = [f for f in facts if f.family in ENDED and f.generation in (0, inputs.generation)]
    if not ends:
        return None
    first = min(ends, key=lambda fact: (not fact.details.get("exception"), fact.at))
    before = BEFORE_A_STEP if inputs.shows_steps else BEFORE_ONE_WAS_SEEN
    exception = VARIES.sub("#", str(first.details.get("exception") or ""))[:EXCEPTION_KEPT]
    end = RunEnd(
        when=None if inputs.stepped_in == inputs.generation else before,
        step=_step(inputs, first),
        cause=exception or str(Exit.in_details(first.details)),
    )
    last = inputs.last_end
    times = last.times + 1 if last is not None and last._replace(times=1) == end else 1
    return end._replace(times=times)


def _step(inputs: DecisionInput, fact: Fact) -> int | None:
    """Where the rank was that ended first, else where the slowest was."""
    at_step = fact.details.get("at_step")
    if isinstance(at_step, int):
        return at_step
    return inputs.step if inputs.stepped_in == inputs.generation else None


def in_common(inputs: DecisionInput, end: RunEnd | None) -> str | None:
    """What the reason that ends a phase says of its last runs, if they have something in common."""
    if end is None:
        return None
    if end.exception and end.times >= ALIKE_TIMES:
        what = f"{end.exception.partition(':')[0]} {end.where}"
        cause = cause_in(end.exception)
        why = (
            cause.advice
            if cause is not None and cause.is_remark
            else "probably the code or the data"
        )
        return f"{what}, {end.times} times in a row: {why}"
    early = inputs.early + 1
    if end.when is None or not inputs.restarts:
        return None
    return f"the last {f'{early} restarts' if early > 1 else 'restart'} ended {end.when}"


def counted(state: JobState, decision: Decision) -> JobState:
    """The state, with the end of the run that this decision answers in its ledger."""
    end, ledger = decision.run_end, state.ledger
    if not decision.new_incident or decision.level is Level.NOTE:
        return state
    if end is None or end.when is None:
        return with_ledger(state, last_end=end, early=0)
    early = ledger.early + bool(ledger.restarts)  # the first run of a phase is no restart
    return replace(state, ledger=replace(ledger, last_end=end, early=early))
