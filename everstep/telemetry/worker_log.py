"""How a worker logs to standard error: lines for a terminal, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal

from temporalio.runtime import LogForwardingConfig, LoggingConfig

from everstep.chronicle.shapes import moment
from everstep.core import names
from everstep.core.bounds import plain
from everstep.core.escaping import for_terminal
from everstep.telemetry.trace_ids import trace_id

LogFormat = Literal["text", "json"]

TEMPORAL = ("temporal_workflow", "temporal_activity")
"""Attributes of a record that the Temporal SDK adds."""

RECOVERY_ID = re.compile(r"(?P<job>.*)/(?P<phase>[^/]*)/recovery-.*", re.DOTALL)

CORE = logging.getLogger("temporalio.core")
"""What the Temporal SDK's core logs, which is written in Rust."""

_context: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default={})  # noqa: B039  # never changed


def log_with(**values: Any) -> None:
    """Add values to what this task logs from here on: `job`, `phase`, `generation`, `trace_id`.

    An empty text is left out. Each activity is a task of its own, in which the Temporal SDK logs its
    failure too.
    """
    present = {name: value for name, value in values.items() if value != ""}
    _context.set({**_context.get(), **present})


def log_with_job(job: str, first_run: str, **values: Any) -> None:
    """Add a job, and the ID of its trace where its first run is known."""
    trace = {"trace_id": trace_id(job, first_run)} if first_run else {}
    log_with(job=job, **trace, **values)


class TextLine(logging.Formatter):
    """A log line of which others wrote a part: a terminal shows it and obeys none of it."""

    def format(self, record: logging.LogRecord) -> str:
        return for_terminal(super().format(record))


class JsonLine(logging.Formatter):
    """One JSON object; a value that is unknown has no key."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": plain(record.getMessage()),
            **_of_temporal(record),
            **_of_core(record),
            **_of_task(record),
        }
        if record.exc_info:
            values["exception"] = plain(self.formatException(record.exc_info))
        return json.dumps(values, ensure_ascii=True, default=str)


def _of_temporal(record: logging.LogRecord) -> dict[str, Any]:
    """Job and phase by the ID of its workflow; which activity of it, and its attempt."""
    context: Mapping[str, Any] = next(
        (about for name in TEMPORAL if (about := getattr(record, name, None))), {}
    )
    workflow_id = context.get("workflow_id")
    if workflow_id is None:
        return {}
    values = {
        **_of_workflow(workflow_id, context.get("workflow_type")),
        "workflow_id": workflow_id,
        "run_id": context.get("workflow_run_id", context.get("run_id")),
        "activity": context.get("activity_type"),
        "attempt": context.get("attempt"),
    }
    return {name: value for name, value in values.items() if value is not None}


def _of_workflow(workflow_id: str, kind: str | None) -> dict[str, Any]:
    """The job and, of a restart, the phase; nothing for a workflow that serves many jobs."""
    if kind == names.TRAINING_JOB:
        return {"job": workflow_id}
    recovery = RECOVERY_ID.fullmatch(workflow_id) if kind == names.RECOVERY else None
    return {} if recovery is None else {"job": recovery["job"], "phase": recovery["phase"]}


def _of_task(record: logging.LogRecord) -> Mapping[str, Any]:
    """Labels of the task that logs. A record may name its job itself, as `job`.

    If that is another job than the task's, the task's labels are left out: a task that serves many jobs
    may have been started while the worker worked for one of them.
    """
    context, job = _context.get(), getattr(record, "job", None)
    return context if job is None or job == context.get("job") else {"job": job}


def _of_core(record: logging.LogRecord) -> dict[str, Any]:
    """The module of the core that logs, and the values beside its message."""
    entry = getattr(record, "temporal_log", None)
    return {} if entry is None else {"target": entry.target, "fields": entry.fields}


def core_logging(form: LogFormat) -> LoggingConfig:
    """Where the core of the Temporal SDK logs: as JSON with all else, as text by itself."""
    if form == "text":
        return LoggingConfig.default
    forwarding = LogForwardingConfig(
        logger=CORE,
        append_target_to_name=False,
        prepend_target_on_message=False,
        append_log_fields_to_message=False,
    )
    return LoggingConfig(filter=LoggingConfig.default.filter, forwarding=forwarding)


def log_to_stderr(form: LogFormat = "text") -> None:
    """Warnings and what is worse."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLine() if form == "json" else TextLine())
    logging.basicConfig(handlers=[handler], force=True)
