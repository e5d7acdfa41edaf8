"""The folder of a phase as the Model Zoo leaves one: summary.json, params.yaml, prefetched_compiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from everstep.chronicle.chronicle import DialectFiles, Entry, SummaryValue
from everstep.chronicle.journal import gained
from everstep.core.spec import PhaseSpec
from everstep.dialects.cerebras.params import COMPILES, PARAMS

NAME = "cerebras"

USUAL_NAME = r"^checkpoint_(?P<step>\d+)"

NON_RECOVERABLE = "non_recoverable_failure"
STATUS: Mapping[SummaryValue, str] = {
    "success": "success",
    "failed": "failed",
    "restarted": "failed",  # by plan: it goes on as after a failure
    "paused": "failed",
}
"""Result of a run -> status in the Model Zoo's summary.json. A run that was stopped for good has none."""


def formatted(phase: PhaseSpec, entry: Entry) -> Entry:
    """The entry with the Model Zoo's fields of summary.json. A run is listed once it is over."""
    is_over = entry.row.get("end_time") is not None
    most = phase.policy.no_progress_restarts if phase.policy.may_restart else 0
    extras = DialectFiles(
        summary={"max_num_restarts": most, "min_num_csx": phase.nodes_min},
        files=phase.files if entry.run == 1 else {},  # as the phase began
        folders=(COMPILES,),
    )
    return replace(entry, row=_run(phase, entry.row) if is_over else {}, dialect_files=extras)


def _run(phase: PhaseSpec, row: Mapping[str, SummaryValue]) -> dict[str, SummaryValue]:
    """An entry of `runs`. Steps are those of checkpoints, as steps that were not saved are lost."""
    loaded, saved = row.get("loaded_checkpoint"), row.get("saved_step")
    start = _written_step(phase) if loaded is None else row.get("starting_step")
    is_behind = isinstance(start, int) and isinstance(saved, int) and saved < start
    if is_behind:  # a rollback: the newest checkpoint is older than the one it started from
        saved = None
    end = start if saved is None else saved
    status = STATUS.get(row["status"], NON_RECOVERABLE)
    why = [str(part) for part in (row["failure_reason"], row.get("error")) if part]
    return {
        "artifact_dir": "" if saved is None else str(row["saved_checkpoint"]).rpartition("/")[0],
        "start_time": row["start_time"],
        "end_time": row["end_time"],
        "status": status,
        "failure_reason": "" if status == "success" else ": ".join(why),
        "starting_step": start,
        "ending_step": end,
        "steps_progressed": gained(start, end),
        "compile_job_ids": (),
        "execute_job_ids": (),
        "loaded_trainer_state_file": loaded,
        "num_csx": row["nodes"],
        "nan_checker_enabled": row.get("checks_numbers", False),
    }


def _written_step(phase: PhaseSpec) -> int:
    """The step of the checkpoint that the document starts from; 0 if its name has none."""
    fit = phase.files.get(PARAMS, {}).get("trainer", {}).get("fit") or {}
    name = str(fit.get("ckpt_path") or "").rpartition("/")[2]
    match = re.search(phase.checkpoints_pattern or USUAL_NAME, name)
    step = "" if match is None else match["step"] or ""
    digits = "".join(filter(str.isdecimal, step))  # the document's pattern may match other text
    return int(digits) if digits else 0
