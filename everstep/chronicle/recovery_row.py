"""What the row of a Recovery has of its outcome, so that a list of rows needs no question for each.

Imports no state, so that a command that only reads rows starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.core import names

if TYPE_CHECKING:
    from everstep.core.deciding.decision import Outcome

Value = dict[str, Any]


def outcome_values(outcome: Outcome) -> Value:
    """The fields of its record that a Recovery fills in when it ends."""
    return {
        "recover_result": names.RECORD_RESULT[outcome.result],
        "recover_end_at": int(outcome.now),
        "isolated": bool(outcome.isolated),
        "generation_to": outcome.generation if outcome.was_started else None,
        "resume_step": None if outcome.resume is None else outcome.resume.step,
        "evidence": outcome.evidence,
        "stages_s": dict(outcome.stages_s),
        "notes": list(outcome.notes),
    }


def with_outcome(record: Value, values: Value) -> Value:
    """The record of a row with the values that its Recovery left."""
    stages_s = {**record["stages_s"], **values["stages_s"]}
    return {
        **record,
        **{key: value for key, value in values.items() if key != "generation_to"},
        "generation": {**record["generation"], "to": values["generation_to"]},
        "stages_s": {name: stages_s.get(name) for name in record["stages_s"]},
    }
