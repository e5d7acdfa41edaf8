"""What a job answers when it is asked, and what it leaves behind when it closes. No rule, no shape:
those are in `views`, `modelarts_view` and `happenings`."""

from __future__ import annotations

from typing import Any

from everstep.chronicle import happenings, views
from everstep.chronicle.chronicle import Chronicle
from everstep.core import modelarts_view
from everstep.core.state import JobState

MODELARTS = "modelarts"


def status(
    state: JobState | None, known: Chronicle, job_id: str, argument: Any = None
) -> dict[str, Any]:
    """Where the job is; asked for `{"shape": "modelarts"}`, as ModelArts would show it."""
    if isinstance(argument, dict) and argument.get("shape") == MODELARTS:
        if state is None:
            return modelarts_view.unread(job_id)
        return modelarts_view.details(state, known)
    return views.status_unread(job_id) if state is None else views.status(state)


def report(state: JobState, known: Chronicle) -> dict[str, Any]:
    """The JobReport, with everything that happened."""
    return {
        **views.report(state, known),
        "running_records": modelarts_view.running_records(known),
        "events": happenings.events(known),
    }


def restarts(report: dict[str, Any], *, newest: int = 50) -> list[dict[str, Any]]:
    """The newest records of all phases, oldest first, as the job itself would tell them."""
    return [record for phase in report["phases"] for record in phase["restarts"]][-newest:]


def left(state: JobState, known: Chronicle) -> dict[str, Any]:
    """The memo of a job that closes, with each record once: no worker is needed from then on."""
    shown = modelarts_view.details(state, known)
    del shown["status"]["running_records"]  # they stand in the report
    return {"report": report(state, known), "status": views.status(state), MODELARTS: shown}


def read(key: str, value: Any, report: dict[str, Any]) -> Any:
    """What the job would answer, from the memo that it left: `value` is what stands under this key."""
    if key == "restarts":
        return restarts(report)
    if key == "events":
        return report["events"]
    if key == MODELARTS:
        status = {**value["status"], "running_records": report["running_records"]}
        return {**value, "status": status}
    return value


def explain(known: Chronicle, job: str, argument: Any) -> dict[str, Any]:
    said = argument if isinstance(argument, dict) else {"n": argument}
    n, phase = said.get("n"), said.get("phase")
    return views.explain(
        job, known, n if isinstance(n, int) else None, phase if isinstance(phase, str) else None
    )
