"""Starting a job: once under its ID, unless it may be taken over."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from everstep import devserver
from everstep.client.connection import is_too_large, ui_link
from everstep.client.documents.documents import JobDocument, Problems, missing_here, of_backend
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import user
from everstep.client.jobs.found_job import FoundJob, look_up
from everstep.core import names
from everstep.core.spec import JobSpec
from everstep.dialects import registry
from everstep.dialects.modelarts import JOB_NAME as MODELARTS_NAME
from everstep.dialects.native.values import JOB_NAME
from workflows import options

TEAM = "team"
"""The label of a document whose value is the fairness key of its job."""
FAIRNESS_KEY_MOST = 64
"""Bytes that the server takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that may be submitted, and the notes of its backend."""

    job: JobDocument
    notes: Problems


def submission(job: JobDocument, *, called: str, from_phase: str | None = None) -> Submission:
    """The job, called so, beginning with this phase. Raises `Failed` if its cluster would refuse it."""
    job = _beginning_with(job, from_phase)
    broken, notes = of_backend(job)
    if broken:
        field, message = broken[0]
        raise Failed(Exit.USAGE, f"{called}: {field}: {message}")
    return Submission(job=job, notes=notes)


async def submit(
    client: Client, submission: Submission, job_id: str, *, again: bool
) -> dict[str, Any]:
    """Start the job, once. With `again` a job of the ID that failed or was stopped is taken over.

    Raises `Failed` if the ID is in use, or if the namespace lacks what the job needs.
    """
    await _check_attributes(client)
    reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
    if again:
        reuse = await _reuse(client, job_id)
    notes = [{"field": field, "message": message} for field, message in submission.notes]
    notes += [asdict(note) for note in missing_here(submission.job)]
    was_used = reuse is not WorkflowIDReusePolicy.REJECT_DUPLICATE
    started = await start(client, submission.job, job_id, reuse)
    return {**started, "was_used": was_used, "notes": notes}


async def _check_attributes(client: Client) -> None:
    """Refuse a namespace in which the job could not do its first step."""
    try:
        missing = await devserver.missing_attributes(client)
    except RPCError:  # a user may lack the right to list them: then the worker finds out
        return
    if missing:
        what = f"namespace {client.namespace} lacks the search attributes {', '.join(missing)}"
        raise Failed(Exit.USAGE, f"{what}; `everstep doctor` has the command that creates them")


def checked(job_id: str) -> str:
    if job_id.startswith("-") or not re.fullmatch(f"{JOB_NAME}|{MODELARTS_NAME}", job_id):
        raise Failed(
            Exit.USAGE,
            f"{job_id!r} cannot be the ID of a job; give one with --id: at most 63 letters, digits, "
            "`.`, `_` and `-`, with a letter or digit at both ends",
        )
    return job_id


def with_own_folder(job: JobDocument) -> JobDocument:
    """The job with records in a folder of its own: in EVERSTEP_HOME/jobs, by its ID."""
    changes: dict[str, Any] = {"model_dir": None}
    if phases := registry.fragment_of(job.document).get("phases"):
        changes["phases"] = [{**phase, "model_dir": None} for phase in phases]
    return replace(job, document=registry.laid_over(job.document, changes))


def _beginning_with(job: JobDocument, phase: str | None) -> JobDocument:
    if phase is None:
        return job
    phases = [each.name for each in job.spec.phases]
    if phase not in phases:
        there = ", ".join(phases)
        raise Failed(Exit.USAGE, f"--from-phase {phase}: no such phase; there is {there}")
    return replace(job, document=registry.laid_over(job.document, {"start_phase": phase}))


class IdTaken(Failed):
    """Another job has the ID, perhaps since a moment ago."""

    def __init__(self, job_id: str) -> None:
        problem = f"there is a job {job_id} already; submit under another ID with --id"
        super().__init__(Exit.USAGE, f"{problem}, or with --again if it failed or was stopped")


async def start(
    client: Client, job: JobDocument, job_id: str, reuse: WorkflowIDReusePolicy
) -> dict[str, Any]:
    """The job, started, unless the ID is taken."""
    try:
        handle = await client.start_workflow(
            names.TRAINING_JOB,
            job.document,
            id=job_id,
            task_queue=names.TASK_QUEUE,
            task_timeout=options.TASK_TIMEOUT,
            id_reuse_policy=reuse,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=_summary(job),
            priority=Priority(fairness_key=fairness_key(job.spec)),
        )
    except WorkflowAlreadyStartedError:
        raise IdTaken(job_id) from None
    except RPCError as error:
        if not is_too_large(error):
            raise
        problem = "the document is larger than this server takes; keep data in files"
        raise Failed(Exit.USAGE, f"{problem} (the server reports: {error.message})") from None
    run = handle.first_execution_run_id
    return {"id": job_id, "run_id": run, "ui": ui_link(client.namespace, job_id)}


def fairness_key(spec: JobSpec) -> str:
    """What the server takes turns by where tasks of many jobs wait: the team, the namespace, or the user."""
    key = spec.labels.get(TEAM) or spec.namespace or user()
    return key.encode()[:FAIRNESS_KEY_MOST].decode(errors="ignore")


def _summary(job: JobDocument) -> str:
    """What the list of the Temporal UI shows."""
    phases = ", ".join(phase.name for phase in job.spec.phases[:10])
    more = len(job.spec.phases) - 10
    return f"phases {phases}" + (f" and {more} more" if more > 0 else "")


CLOSING = frozenset({"stopping", "completed", "failed", "stopped"})
"""States of a job that is about to close: its pods are removed, or what happened is published."""
CLOSING_S = 30.0
"""The longest wait for such a job."""


async def _once_closed(job: FoundJob) -> FoundJob | None:
    """The job once it has closed; as it is if that takes longer than `CLOSING_S`."""
    with suppress(TimeoutError, WorkflowFailureError):
        async with asyncio.timeout(CLOSING_S):
            await job.client.get_workflow_handle(job.id).result()
    return await look_up(job.client, job.id)


def _is_closing(job: FoundJob) -> bool:
    return job.attribute("TrainState") in CLOSING


def _open_sentence(job: FoundJob) -> str:
    if _is_closing(job):
        return f"{job.id} has not closed yet; `everstep status {job.id}` says what that waits for"
    return f"{job.id} is running; `everstep stop {job.id}` ends it, --id starts another"


async def _reuse(client: Client, job_id: str) -> WorkflowIDReusePolicy:
    """How the ID may be taken over; `Failed` if its job runs or is done."""
    earlier = await look_up(client, job_id)
    if earlier is not None and earlier.is_open and _is_closing(earlier):
        earlier = await _once_closed(earlier)
    if earlier is None:
        return WorkflowIDReusePolicy.REJECT_DUPLICATE
    if earlier.is_open:
        raise Failed(Exit.USAGE, _open_sentence(earlier))
    if await earlier.end() == "completed":
        raise Failed(Exit.USAGE, f"{job_id} is completed; submit under another ID with --id")
    return WorkflowIDReusePolicy.ALLOW_DUPLICATE  # one that was stopped in order completed too
