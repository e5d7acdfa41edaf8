"""The memo that a closed job leaves: packed by the job, unpacked by commands and tests.

Imports no state and no document, so that a command that only reads a memo starts quickly.
"""

from __future__ import annotations

from typing import Any

from everstep.dialects import modelarts

Value = dict[str, Any]


def packed(status: Value) -> Value:
    """The status with its pods as rows, their fields named once: there may be ten thousand of them."""
    fields = list(status["pods"][0]) if status["pods"] else []
    rows = [list(pod.values()) for pod in status["pods"]]
    return {**status, "pods": {"fields": fields, "rows": rows}}


def read(key: str, value: Any, report: Value) -> Any:
    """What the job would answer, from the memo that it left: `value` is what stands under this key."""
    match key:
        case "restarts":
            return restarts_of(report)
        case "events":
            return report["events"]
        case "status":
            fields, rows = value["pods"]["fields"], value["pods"]["rows"]
            return {**value, "pods": [dict(zip(fields, row, strict=True)) for row in rows]}
        case modelarts.NAME:
            status = {**value["status"], "running_records": report["running_records"]}
            return {**value, "status": status}
        case _:
            return value


def restarts_of(report: Value, *, newest: int = 50) -> list[Value]:
    """The newest records of all phases, oldest first, as the query returns them."""
    return [record for phase in report["phases"] for record in phase["restarts"]][-newest:]
