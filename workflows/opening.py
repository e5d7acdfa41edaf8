"""What a TrainingJob begins with: a user's document, or what its last run handed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, TypeAdapter
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from everstep.chronicle.chronicle import Chronicle
from everstep.converter import Unreadable
from everstep.core import names
from everstep.core.spec import JobSpec
from everstep.core.state import JobState
from workflows import options, signatures
from workflows.inputs import typed
from workflows.recovery import raise_cause

LOCAL_FAILURES = (ActivityError, ApplicationError)
"""A local activity's failure comes as it is, one of its time-outs as an ActivityError."""


CHRONICLE = TypeAdapter(Chronicle)


def _short(chronicle: Chronicle) -> Any:
    """Only what differs from a default: no rule reads the chronicle.

    The state is written with its defaults. A later version may have others, and these must not change what a
    job under way does.
    """
    return CHRONICLE.dump_python(chronicle, mode="json", exclude_defaults=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a run hands to the next one."""

    document: Any
    state: JobState
    chronicle: Annotated[Chronicle, PlainSerializer(_short)]


def carried_over(raw: tuple[Any, ...]) -> Carried | None:
    """What an earlier run handed over. A document of a user cannot pass for it: it has no earlier run."""
    if workflow.info().continued_run_id is None or len(raw) != 1 or not isinstance(raw[0], dict):
        return None
    # The next run of a cron schedule gets a user's document.
    if raw[0].keys() != {"document", "state", "chronicle"}:
        return None
    return typed(raw[0], Carried)


def only_document(raw: tuple[Any, ...]) -> Any:
    if len(raw) != 1:
        problem = f"document: exactly one JSON document is needed, not {len(raw)}"
        raise ApplicationError(problem, type="InvalidSpec", non_retryable=True)
    if not isinstance(raw[0], Unreadable):
        return raw[0]
    if workflow.info().continued_run_id is not None:
        # What our own last run handed over was readable: this worker lacks something, a codec perhaps.
        raise RuntimeError(f"the run before this one cannot be read here: {raw[0].why}")
    problem = f"document: not readable JSON ({raw[0].why})"
    raise ApplicationError(problem, type="InvalidSpec", non_retryable=True)


async def compiled(document: Any) -> JobSpec:
    try:
        return await workflow.execute_local_activity(
            signatures.compile_document, document, summary="read the document", **options.LOCAL
        )
    except LOCAL_FAILURES as error:
        raise_cause(error)


async def patched(document: Any, fragment: Any) -> Any:
    try:
        return await workflow.execute_local_activity(
            signatures.patch, args=[document, fragment], **options.LOCAL
        )
    except LOCAL_FAILURES as error:
        raise_cause(error)


def keep_notes(spec: JobSpec) -> None:
    """What lists and commands show of a document without asking the job."""
    notes = [{"field": note.field, "message": note.message} for note in spec.notes]
    if fields := {k: v for k, v in (("notes", notes), ("labels", dict(spec.labels))) if v}:
        workflow.upsert_memo(fields)


def refuse_id(job: str) -> None:
    problem = names.refused(job)
    if problem is not None:
        raise ApplicationError(problem, type="InvalidSpec", non_retryable=True)
