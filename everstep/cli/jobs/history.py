"""Restarts older than a job remembers: read from the rows of its Recoveries.

Each Recovery carries its record, as it was when it began, in its memo, and how it ended as its result,
or, where its level failed, as the details of its failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError

from everstep.cli.connection import UnlessAbsent, of_each
from everstep.cli.jobs.job import FoundJob
from everstep.core import names

Value = dict[str, Any]
Key = tuple[str, int]


async def all_records(job: FoundJob, *, newest: Iterable[Value]) -> list[Value]:
    """Every record of this job, oldest first; `newest` are known better than their rows."""
    known = {_key(record): record for record in newest}
    older = await _of_rows(job, known)
    return sorted((*older, *known.values()), key=lambda record: str(record["at"]))


async def _of_rows(job: FoundJob, known: Mapping[Key, Value]) -> list[Value]:
    rows: dict[Key, tuple[WorkflowExecution, Value]] = {}
    async for row in job.client.list_workflows(await _filter(job)):
        record = await row.memo_value("record", None)
        if record is not None and _key(record) not in known:
            rows.setdefault(_key(record), (row, record))  # newest first: a reset made it again
    return await of_each(rows.values(), lambda row: _ended(job.client, *row))


def _key(record: Value) -> Key:
    return record["phase"], record["n"]


async def _filter(job: FoundJob) -> str:
    """The Recoveries of this job since it was submitted: an ID may have been used before."""
    mine = f"WorkflowType = '{names.RECOVERY}' AND TrainJob = {quoted(job.id)}"
    first = job.seen.raw_info.first_run_id or job.seen.run_id
    with UnlessAbsent():
        begun = await job.client.get_workflow_handle(job.id, run_id=first).describe()
        return f"{mine} AND StartTime >= '{begun.start_time.isoformat()}'"
    return mine  # forgotten by the server, and whatever was before it too


def quoted(text: str) -> str:
    """A value in a list filter."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


async def _ended(client: Client, row: WorkflowExecution, record: Value) -> Value:
    """The record with what came of it, as far as that was told."""
    if row.status is WorkflowExecutionStatus.RUNNING:
        return record
    outcome = await _outcome(client, row)
    if outcome is None:
        return {**record, "recover_result": "terminated"}
    return _with_outcome(record, outcome)


async def _outcome(client: Client, row: WorkflowExecution) -> Value | None:
    """What came of it; None if it was taken away before it knew."""
    try:
        return dict(await client.get_workflow_handle(row.id, run_id=row.run_id).result())
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == names.RECOVERY_FAILED:
            return dict(cause.details[0])
        return None


def _with_outcome(record: Value, outcome: Value) -> Value:
    result = outcome.get("result", "")
    to = outcome.get("generation") if outcome.get("was_started") else None
    resume = outcome.get("resume") or {}
    stages = {**record["stages_s"], **outcome.get("stages_s", {})}
    return {
        **record,
        "recover_result": names.RECORD_RESULT.get(result, record["recover_result"]),
        "recover_end_at": int(outcome["now"]) if "now" in outcome else None,
        "isolated": bool(outcome.get("isolated")),
        "generation": {**record["generation"], "to": to},
        "resume_step": resume.get("step"),
        "evidence": outcome.get("evidence"),
        "stages_s": {name: stages.get(name) for name in record["stages_s"]},
        "notes": outcome.get("notes", []),
    }
