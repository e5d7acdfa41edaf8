"""The command `list`: every job that the server still shows, the newest first."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from everstep.chronicle import shapes
from everstep.cli import pages
from everstep.cli.output import AsJson, show
from everstep.cli.server import with_server
from everstep.client.connection import of_each
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs.found_job import CLOSED, look_up
from everstep.client.jobs.status import glance
from everstep.core import names

Value = dict[str, Any]


ListedState = StrEnum(
    "ListedState",
    "PENDING LAUNCHING RUNNING RECOVERING UNREACHABLE PAUSED STOPPING COMPLETED FAILED STOPPED",
)
"""Where a job can be: what users write is the same in small letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are to be shown."""

    states: frozenset[str]
    labels: tuple[tuple[str, str | None], ...]

    def __contains__(self, job: Value) -> bool:
        labels = job["labels"]
        return (not self.states or job["state"] in self.states) and all(
            key in labels and value in (None, labels[key]) for key, value in self.labels
        )


def list_(
    states: Annotated[
        list[ListedState] | None,
        typer.Option("--state", help="Only jobs in this state; may be repeated.", metavar="STATE"),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY[=VALUE]",
            help="Only jobs with this label; with each of several.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="So many of the newest at most.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print all jobs, the newest first: state, phase, step, restarts, age, labels.

    States are pending, launching, running, recovering, unreachable, paused, stopping, and at last
    completed, failed or stopped. Labels are those of the document, metadata.labels.
    """
    job_filter = JobFilter(
        states=frozenset(states or ()), labels=tuple(_label(text) for text in labels or ())
    )

    async def chosen_jobs(client: Client) -> tuple[list[Value], int]:
        meant = [job for job in await listed(client) if job in job_filter]
        newest = meant[:limit]
        return await _with_newest_steps(client, newest), len(meant) - len(newest)

    jobs, left = with_server(chosen_jobs)
    is_choosing = bool(job_filter.states or job_filter.labels)
    page = partial(pages.jobs, left=left, is_choosing=is_choosing)
    show(jobs, page, as_json=as_json)


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if not key:
        raise Failed(Exit.USAGE, f"--label {text}: write KEY=VALUE, or KEY for any value")
    return key, value if equals else None


async def _with_newest_steps(client: Client, jobs: list[Value]) -> list[Value]:
    """The jobs, those that are open with their step of now: the list of the server lags behind."""

    async def newest(job: Value) -> Value:
        job_now = None if job["state"] in CLOSED.values() else await look_up(client, job["id"])
        if job_now is None:
            return job
        step = (await glance(job_now)).get("step")
        return {**job, "step": job_now.attribute("LastStep") if step is None else step}

    return await of_each(jobs, newest)


async def listed(client: Client) -> list[Value]:
    """One row per ID: its newest run, begun when the first run of that chain began."""
    runs: dict[str, list[WorkflowExecution]] = defaultdict(list)
    async for run in client.list_workflows(f"WorkflowType = '{names.TRAINING_JOB}'"):
        runs[run.id].append(run)
    jobs = [await _job(of_one_id) for of_one_id in runs.values()]
    return sorted(jobs, key=lambda job: str(job["started_at"]), reverse=True)


async def _job(runs: list[WorkflowExecution]) -> Value:
    newest, *earlier = sorted(runs, key=lambda run: run.start_time, reverse=True)
    attributes = {p.key.name: p.value for p in newest.typed_search_attributes.search_attributes}
    began = _begun(newest, earlier).start_time.timestamp()
    return {
        "id": newest.id,
        "state": _state(newest, attributes.get("TrainState")),
        "phase": attributes.get("TrainPhase"),
        "step": attributes.get("LastStep"),
        "restarts": attributes.get("Restarts", 0),
        "reschedules": await newest.memo_value("reschedules", 0),
        "labels": await newest.memo_value("labels", {}),
        "started_at": shapes.moment(began),
        "age_s": round(max(0.0, time.time() - began)),
    }


def _begun(newest: WorkflowExecution, earlier: Iterable[WorkflowExecution]) -> WorkflowExecution:
    """The run that the newest one goes on from, back to the one that was submitted."""
    first = newest
    for run in earlier:
        if run.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
            break
        first = run
    return first


def _state(run: WorkflowExecution, state: str | None) -> str:
    """What the job says of itself; once it has closed, only if that is an end."""
    if run.status is None or run.status is WorkflowExecutionStatus.RUNNING:
        return state or "pending"
    if state is not None and state in CLOSED.values():
        return state
    return CLOSED.get(run.status, "running")
