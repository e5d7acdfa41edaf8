"""Responses of a job: JSON of its queries, its report and its memo. All jobs respond alike, whatever
their dialect: with the shapes of `chronicle` and the fields that ModelArts defines."""

from __future__ import annotations

from typing import Any

from everstep.chronicle import happenings, record_rows, shapes, views
from everstep.chronicle.chronicle import Chronicle, Record
from everstep.core.state import JobState
from everstep.dialects import job_memo
from everstep.dialects.mindcluster import NAME as MINDCLUSTER
from everstep.dialects.mindcluster import view as mindcluster
from everstep.dialects.modelarts import NAME as MODELARTS
from everstep.dialects.modelarts import view as modelarts

Value = dict[str, Any]


def status(
    state: JobState | None, chronicle: Chronicle, job_id: str, argument: Any = None
) -> Value:
    """The job's state; with `{"shape": "modelarts"}` as the ModelArts API returns it."""
    if isinstance(argument, dict) and argument.get("shape") == MODELARTS:
        return modelarts.unread(job_id) if state is None else modelarts.details(state, chronicle)
    return shapes.status_unread(job_id) if state is None else views.status(state, chronicle)


def record(r: Record) -> Value:
    """One restart in the pinned shape; unknown fields are null."""
    return {**views.record(r), **modelarts.of_record(r)}


def restarts(chronicle: Chronicle) -> list[Value]:
    """The newest records over all phases, oldest first."""
    return [record(r) for r in chronicle.records]


def shaped_restarts(chronicle: Chronicle, job_id: str, argument: Any) -> list[Value] | Value:
    """The newest restart records; with `{"shape": "mindcluster"}` as MindCluster records them."""
    records = restarts(chronicle)
    if isinstance(argument, dict) and argument.get("shape") == MINDCLUSTER:
        return mindcluster.reschedule_reason(job_id, records)
    return records


def report(state: JobState, chronicle: Chronicle) -> Value:
    """The JobReport, with everything that happened."""
    return {
        **views.report(state, chronicle, record),
        "running_records": modelarts.running_records(chronicle),
        "events": happenings.events(chronicle),
    }


def explain(state: JobState | None, chronicle: Chronicle, job: str, argument: Any) -> Value:
    """The facts, the fault, the decision with its reason, and the cost of restart `n`, else of the newest.

    Numbers count within a phase, so that two phases may have the same. The newest also has what the job
    waits for.
    """
    options = argument if isinstance(argument, dict) else {"n": argument}
    n = options["n"] if isinstance(options.get("n"), int) else None
    phase = options["phase"] if isinstance(options.get("phase"), str) else None
    is_newest = n is None and phase is None and state is not None
    waits = shapes.present_lines(views.status(state, chronicle)) if is_newest and state else []
    records = [r for r in chronicle.records if n in (None, r.n) and phase in (None, r.phase)]
    if not records:
        which = "no such restart among the newest 50" if chronicle.records else "no restart yet"
        return {"id": job, "restart": None, "text": "\n".join([which, *waits])}
    latest = record(records[-1])
    text = "\n".join([record_rows.story(latest), *waits])
    return {"id": job, "restart": latest, "text": text}


def closing_memo(state: JobState, chronicle: Chronicle) -> Value:
    """The memo of a job that closes: commands read it without a worker. It has each record once."""
    details = modelarts.details(state, chronicle)
    del details["status"]["running_records"]  # they stand in the report
    return {
        "report": report(state, chronicle),
        "status": job_memo.packed(views.status(state, chronicle)),
        MODELARTS: details,
        "changes": views.changes(chronicle),
    }
