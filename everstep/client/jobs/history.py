"""Restarts older than those that the job itself keeps: read from the rows of its Recoveries.

The memo of each Recovery has its record, as it was when it began, and its outcome. The server lists both, so
no Recovery has to be queried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from everstep.chronicle.record_rows import with_outcome
from everstep.client.jobs.found_job import FoundJob
from everstep.core import names

Value = dict[str, Any]
Key = tuple[str, int]


async def all_records(job: FoundJob, *, newest: Iterable[Value]) -> list[Value]:
    """Every record of this job, oldest first; `newest` are known better than their rows."""
    return with_newest(await recovery_records(job), newest)


def with_newest(records: Iterable[Value], newest: Iterable[Value]) -> list[Value]:
    """The records and the newest ones, oldest first. One that is in both is as in the newest."""
    by_key = {_key(record): record for record in (*records, *newest)}
    return sorted(by_key.values(), key=lambda record: str(record["at"]))


async def recovery_records(job: FoundJob) -> list[Value]:
    """The record of every Recovery that the server lists."""
    records: dict[Key, Value] = {}
    async for row in job.client.list_workflows(await _filter(job)):
        record = await row.memo_value("record", None)
        if record is not None and _key(record) not in records:  # newest first: a reset repeats
            outcome = await row.memo_value("outcome", None)
            records[_key(record)] = _ended(row, record, outcome)
    return list(records.values())


def _key(record: Value) -> Key:
    return record["phase"], record["n"]


async def _filter(job: FoundJob) -> str:
    """The Recoveries of this job, from its submission until the next one of the same ID."""
    began = await job.began()
    times = {">=": began, "<": job.until}
    bounds = [f"StartTime {sign} '{at.isoformat()}'" for sign, at in times.items() if at]
    recoveries = f"WorkflowType = '{names.RECOVERY}' AND TrainJob = {names.filter_value(job.id)}"
    return " AND ".join([recoveries, *bounds])


def _ended(row: WorkflowExecution, record: Value, outcome: Value | None) -> Value:
    """The record with its outcome. A row that closed without one was terminated or cancelled."""
    if row.status is WorkflowExecutionStatus.RUNNING:
        return record
    if outcome is None:
        return {**record, "recover_result": "terminated"}
    return with_outcome(record, outcome)
