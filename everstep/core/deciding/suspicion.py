"""Suspect the checkpoint from which two runs started that ended alike: resume once from an older one.

Where they left no exception, only the last restart that is left is spent on that: a file that is missing at
each start looks the same. If none is older, or the job went back as often as it may, the checkpoint stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from everstep.core.deciding.decision import RunEnd
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.end_causes import cause_of
from everstep.core.deciding.exclusions import exclusion
from everstep.core.deciding.naming import Diagnosis
from everstep.core.deciding.run_ends import run_end
from everstep.core.levels import FaultClass, Level

ALIKE_TIMES = 2
OF_A_RUN = frozenset({FaultClass.CRASH, FaultClass.UNKNOWN})
"""Classes that say no more than that a run ended."""


class Row(NamedTuple):
    """A condition and the remark on the checkpoint; with `goes_back` the job resumes from an older one."""

    holds: Callable[[DecisionInput, Diagnosis], bool]
    why: str
    goes_back: bool = False


ROWS: tuple[Row, ...] = (
    Row(
        lambda inputs, _: inputs.saved is None or inputs.saved.order_number is None,
        "it stays, as only file times order the checkpoints",
    ),
    Row(
        lambda inputs, diagnosis: exclusion(inputs, diagnosis, Level.ROLLBACK) is not None,
        "it stays, as {excluded}",
    ),
    Row(lambda *_: True, "it is set aside, if an older one is there", goes_back=True),
)
"""The first that holds."""


def with_suspicion(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """What was named, with the checkpoint of its run left behind before anything else is tried."""
    end = run_end(inputs, diagnosis.facts)
    if end is None or inputs.resume is None or not _is_suspicious(inputs, diagnosis, end):
        return diagnosis
    row = next(row for row in ROWS if row.holds(inputs, diagnosis))
    why = row.why.format(excluded=exclusion(inputs, diagnosis, Level.ROLLBACK))
    times = "twice" if end.times == ALIKE_TIMES else f"{end.times} times"
    what = f"{end.cause.partition(':')[0]} {end.where} {times} in a row"
    remark = f"{what}: checkpoint {inputs.resume.name} is suspected; {why}"
    ladder = (Level.ROLLBACK, *diagnosis.ladder) if row.goes_back else diagnosis.ladder
    return replace(
        diagnosis,
        ladder=ladder,
        begins_with_rollback=row.goes_back,
        remarks=(*diagnosis.remarks, remark),
    )


def _is_suspicious(inputs: DecisionInput, diagnosis: Diagnosis, end: RunEnd) -> bool:
    is_alike = end.times == ALIKE_TIMES if end.exception else _is_worth_the_last(inputs, end)
    is_open = inputs.incident is None and not diagnosis.ladder_is_final
    return (
        is_alike
        and is_open
        and inputs.policy.suspects_checkpoints
        and diagnosis.fault.cls in OF_A_RUN
        and (bool(end.exception) or _may_be_the_checkpoint(diagnosis))
    )


def _is_worth_the_last(inputs: DecisionInput, end: RunEnd) -> bool:
    """Whether the last restart without progress had better begin with an older checkpoint.

    Runs ended with the same exit code before a step, in a job that trained before: so its code and its files
    were once in order.
    """
    is_early = end.when is not None and inputs.stepped_in > 0
    limit = inputs.policy.no_progress_restarts
    is_last = limit is not None and inputs.no_progress == limit - 1
    return is_last and is_early and end.has_exit_code and end.times >= ALIKE_TIMES


def _may_be_the_checkpoint(diagnosis: Diagnosis) -> bool:
    """Whether no last words name another cause: storage, the network, a file that is not there."""
    causes = (cause_of(fact) for fact in diagnosis.facts)
    return all(cause is None or cause.of_checkpoint for cause in causes)
