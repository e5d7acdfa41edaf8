"""Runs that check their numbers after wrong ones, and what their ends mean for the cause.

A node that computes wrong numbers is found by such a run: it gets stuck and the job loses the node. If
checks get stuck twice in a row and no node is lost, the cause is not a node.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from everstep.core.deciding.decision import Checking
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.naming import Diagnosis
from everstep.core.facts import NUMBERS_CHECKED
from everstep.core.levels import NEVER_BILLED
from everstep.core.patterns import is_found

Sign = Literal["", "wrong", "stuck"]


class Row(NamedTuple):
    """How a run ended, and the one before it; then whether the next run checks its numbers, and why."""

    sign: Sign
    checked: bool  # its numbers
    after: Sign | None  # None: whatever it was
    node_found: bool | None  # None: either
    checks: bool | None  # None: there is no next run
    why: str


ROWS: tuple[Row, ...] = (
    Row("wrong", False, None, None, True, "the next run checks its numbers for {steps} steps"),
    Row("wrong", True, None, None, True, "the next run checks its numbers again"),
    Row("stuck", True, "wrong", True, False, "the check found where: the next run goes without"),
    Row("stuck", True, "wrong", False, True, "the check found no node: it is made once more"),
    Row("stuck", True, "stuck", None, None, "no node is the cause of it, but the code or the data"),
)


class Verdict(NamedTuple):
    """What becomes of the checks, and the sentence; `ends`: there is no next run."""

    checking: Checking | None = None
    why: str = ""
    ends: bool = False


def judge(inputs: DecisionInput, diagnosis: Diagnosis) -> Verdict:
    """What this end of a run means for the next one."""
    check, before = inputs.policy.number_check, inputs.checking
    if check is None or inputs.incident is not None:
        return Verdict()
    if diagnosis.fault.kind == NUMBERS_CHECKED:
        return Verdict(Checking(), "the numbers are right again: the next run does not check them")
    if diagnosis.fault.cls in NEVER_BILLED:
        return Verdict()
    sign = _sign(diagnosis, wrong=check.wrong, stuck=check.stuck)
    node_found = diagnosis.fault.is_hardware or bool(inputs.isolated)
    for row in ROWS:
        is_same = (row.sign, row.checked) == (sign, before.is_on)
        if is_same and row.after in (None, before.after) and row.node_found in (None, node_found):
            why = row.why.format(steps=check.steps)
            if row.checks is None:
                return Verdict(why=why, ends=True)
            return Verdict(Checking(is_on=row.checks, after=sign), why)
    return Verdict(before._replace(after=sign))


def _sign(diagnosis: Diagnosis, *, wrong: str, stuck: str) -> Sign:
    exceptions = [str(fact.details.get("exception") or "") for fact in diagnosis.facts]
    if any(is_found(wrong, text) for text in exceptions):
        return "wrong"
    return "stuck" if any(is_found(stuck, text) for text in exceptions) else ""
