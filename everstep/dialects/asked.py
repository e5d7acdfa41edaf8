"""What a job answers when it is asked, and what it leaves behind when it closes: the shapes of
`chronicle`, and what ModelArts has a name for in theirs. Every job answers so, whatever its document."""

from __future__ import annotations

from typing import Any

from everstep.chronicle import happenings, shapes, stories, views
from everstep.chronicle.chronicle import Chronicle, Record
from everstep.core.state import JobState
from everstep.dialects import job_memo
from everstep.dialects.mindcluster import NAME as MINDCLUSTER
from everstep.dialects.mindcluster import view as mindcluster
from everstep.dialects.modelarts import NAME as MODELARTS
from everstep.dialects.modelarts import view as modelarts

Value = dict[str, Any]


def status(state: JobState | None, known: Chronicle, job_id: str, argument: Any = None) -> Value:
    """Where the job is; asked for `{"shape": "modelarts"}`, as ModelArts would show it."""
    if isinstance(argument, dict) and argument.get("shape") == MODELARTS:
        return modelarts.unread(job_id) if state is None else modelarts.details(state, known)
    return shapes.status_unread(job_id) if state is None else views.status(state, known)


def record(r: Record) -> Value:
    """One restart in the pinned shape; what is not known is null."""
    return {**views.record(r), **modelarts.of_record(r)}


def restarts(known: Chronicle) -> list[Value]:
    """The newest records over all phases, oldest first."""
    return [record(r) for r in known.records]


def shaped_restarts(known: Chronicle, job_id: str, argument: Any) -> list[Value] | Value:
    """The same; asked for `{"shape": "mindcluster"}`, as MindCluster shows them."""
    records = restarts(known)
    if isinstance(argument, dict) and argument.get("shape") == MINDCLUSTER:
        return mindcluster.reschedule_reason(job_id, records)
    return records


def report(state: JobState, known: Chronicle) -> Value:
    """The JobReport, with everything that happened."""
    return {
        **views.report(state, known, record),
        "running_records": modelarts.running_records(known),
        "events": happenings.events(known),
    }


def explain(known: Chronicle, job: str, argument: Any) -> Value:
    """What was seen, how it was named, what was decided and why, what it cost: of restart `n`.

    The newest if no `n`: numbers count within a phase, so that two phases may have the same.
    """
    said = argument if isinstance(argument, dict) else {"n": argument}
    n = said["n"] if isinstance(said.get("n"), int) else None
    phase = said["phase"] if isinstance(said.get("phase"), str) else None
    found = [r for r in known.records if n in (None, r.n) and phase in (None, r.phase)]
    if not found:
        which = "no such restart among the newest 50" if known.records else "no restart yet"
        return {"id": job, "restart": None, "text": which}
    shown = record(found[-1])
    return {"id": job, "restart": shown, "text": stories.story(shown)}


def left(state: JobState, known: Chronicle) -> Value:
    """The memo of a job that closes, with each record once: no worker is needed from then on."""
    shown = modelarts.details(state, known)
    del shown["status"]["running_records"]  # they stand in the report
    return {
        "report": report(state, known),
        "status": job_memo.packed(views.status(state, known)),
        MODELARTS: shown,
    }
