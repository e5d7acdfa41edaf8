"""Commands that query one job: `status`, `restarts`, `events`, `why`. Once it ended, its memo answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from everstep.chronicle import record_rows, shapes
from everstep.cli import pages, status_page
from everstep.cli.connection import UnlessAbsent, ui_link
from everstep.cli.exits import Exit, Failed
from everstep.cli.jobs.answers import NoResponse, newest_answer, send_query
from everstep.cli.jobs.ended_jobs import EndedJob, of_job_or_file
from everstep.cli.jobs.evidence import evidence_lines
from everstep.cli.jobs.history import all_records
from everstep.cli.jobs.job import FoundJob, JobId, find, of_job
from everstep.cli.jobs.lives import lives_known, lives_of, rows_of_lives
from everstep.cli.output import AsJson
from everstep.cli.output import show as print_value
from everstep.core import names
from everstep.dialects.modelarts import NAME as MODELARTS

MONITOR = "monitor"
"""The activity whose heartbeat has the progress of the training."""

BESIDE_THE_LOOP = frozenset({"publish"})
"""Activities for which no job waits."""

Value = dict[str, Any]


def status(
    job_id: JobId,
    as_json: AsJson = False,
    modelarts: Annotated[
        bool, typer.Option("--modelarts", help="Print the JSON that ModelArts has for a job.")
    ] = False,
) -> None:
    """Print where a job is: state, step, pods, budgets, what it waits for.

    If no worker answers, print what the server has, and how old that is.
    """
    if modelarts:
        shape = of_job(job_id, as_modelarts)
    else:
        shape = of_job_or_file(job_id, status_with_submissions, lambda ended: ended.status)
    print_value(shape, status_page.status, as_json=as_json or modelarts)


def restarts(
    job_id: JobId,
    every: Annotated[
        bool, typer.Option("--all", help="Also restarts older than the newest 50.")
    ] = False,
    mindcluster: Annotated[
        bool,
        typer.Option("--mindcluster", help="Print what MindCluster's job-reschedule-reason has."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the restarts of a job: cause, level, result, cost; first those of earlier lives of its ID."""
    records_of = all_restarts if every else newest_restarts
    if mindcluster:
        from everstep.dialects.mindcluster.view import reschedule_reason  # for this shape alone

        print(json.dumps(reschedule_reason(job_id, of_job(job_id, records_of)), indent=2))
        return
    rows, has_lives = of_job_or_file(
        job_id,
        lambda job: rows_of_all_lives(job, records_of),
        lambda ended: (ended.restarts, ended.lives > 1),
    )
    print_value(rows, partial(pages.restarts, has_lives=has_lives), as_json=as_json)


def events(
    job_id: JobId,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many of the oldest.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, max=100, help="Print so many at most; else all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what happened to a job, oldest first: of each life of its ID the newest 50 things are kept."""
    rows, has_lives = of_job_or_file(
        job_id,
        lambda job: rows_of_all_lives(job, all_events),
        lambda ended: (ended.events, ended.lives > 1),
    )
    chosen_rows = rows[offset:][:limit]
    print_value(chosen_rows, partial(pages.events, has_lives=has_lives), as_json=as_json)


async def rows_of_all_lives(
    job: FoundJob, rows_of: Callable[[FoundJob], Awaitable[list[Value]]]
) -> tuple[list[Value], bool]:
    """The rows of all lives of this job's ID, and whether there are several."""
    lives = await lives_known(job)
    return await rows_of_lives(lives, rows_of), len(lives) > 1


def why(
    job_id: JobId,
    n: Annotated[
        int | None,
        typer.Argument(metavar="N", min=1, help="The restart's number; else the newest."),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The phase it counts in; else the newest that has it."),
    ] = None,
    life: Annotated[
        int | None,
        typer.Option(
            metavar="K", min=1, help="The life of the ID; else the newest that has the restart."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a restart: what was seen, what was decided and why, what it cost. Or what a job waits for."""
    choice = RestartChoice(n=n, phase=phase)
    value = of_job_or_file(
        job_id,
        lambda job: explained_of_lives(job, choice, life),
        lambda ended: explained_from_file(ended, choice, life),
    )
    print_value(value, pages.why, as_json=as_json)


def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Print the document that a job follows, and who changed it when: the newest 20 changes."""
    print_value(of_job(job_id, document_of), pages.document, as_json=as_json)


# -- status -------------------------------------------------------------------------------------


async def status_with_submissions(job: FoundJob) -> Value:
    """The status, and how often a job was submitted under this ID, as far as the server has it."""
    status, submissions = await asyncio.gather(status_known(job), _submissions(job))
    return {**status, "submissions": submissions}


async def _submissions(job: FoundJob) -> int | None:
    """The number of lives; None if the server lists no runs, as without the right to that."""
    try:
        return len(await lives_of(job))
    except RPCError:
        return None


async def status_known(job: FoundJob) -> Value:
    """The status; if no worker answers, what the server has, with the reason in `silence`."""
    try:
        status = await status_of(job)
        isolated = await _still_isolated(job, status["isolated_nodes"])
        return {**status, "isolated_nodes": isolated, "silence": None}
    except NoResponse as error:
        return await _left_behind(await find(job.client, job.id), silence=error.why)


async def _still_isolated(job: FoundJob, nodes: list[str]) -> list[str]:
    """The nodes that were not released since; all of them for a job that has ended."""
    cluster = job.attribute("TrainCluster")
    if not nodes or not job.is_open or cluster is None:
        return nodes
    with UnlessAbsent():
        rows = await send_query(job.client, names.quarantine_id(cluster), "nodes")
        isolated = {row["name"] for row in rows if row["state"] == "isolated"}
        return [node for node in nodes if node in isolated]
    return nodes


async def _left_behind(job: FoundJob, *, silence: str) -> Value:
    """What the worker left with the server, and when it last did."""
    left = {
        "state": job.attribute("TrainState") or "pending",
        "reschedules": await job.memo("reschedules") or 0,
    }
    raw = job.description.raw_description
    beats = [pending.last_heartbeat_time for pending in raw.pending_activities]
    at = max(
        job.description.start_time.timestamp(),
        await newest_answer(job.client, raw.workflow_execution_info.execution) or 0.0,
        *(beat.ToMicroseconds() / 1e6 for beat in beats),
    )
    dated = {"as_of": shapes.moment(at), "age_s": round(max(0.0, time.time() - at))}
    return {**await _with_live_state(job, left), **dated, "silence": silence}


async def status_of(job: FoundJob) -> Value:
    """The pinned shape; what is not known is null."""
    answer = await job.answer("status") or {"state": job.closed_as, "reason": await job.failure()}
    return await _with_live_state(job, answer)


async def _with_live_state(job: FoundJob, answer: Value) -> Value:
    """The answer, with what the server alone reports of the job."""
    status = {
        **shapes.status_unread(job.id),
        "phase": job.attribute("TrainPhase"),
        "step": job.attribute("LastStep"),
        "restarts": job.attribute("Restarts") or 0,
        "reschedules": None,
        "isolated_nodes": job.attribute("IsolatedNodes") or [],
        **answer,
        "ui": ui_link(job.client.namespace, job.id),
    }
    if not job.is_open:
        return status
    run_began = job.description.start_time.timestamp()
    glanced = shapes.with_glance(status, await glance(job))
    aged = shapes.with_age(glanced, time.time(), run_began=run_began)
    pending = job.description.raw_description.pending_activities
    return with_failing({**aged, "unseen_why": _monitor_failure(pending)}, pending)


def _monitor_failure(pending: Iterable[PendingActivityInfo]) -> str | None:
    """How the newest attempt of the monitor failed; None if none did."""
    return next(
        (
            each.last_failure.message
            for each in pending
            if each.activity_type.name == MONITOR and each.HasField("last_failure")
        ),
        None,
    )


FAILURES_TOLERATED = 3
"""An activity that failed more often than this in a row is shown."""


def with_failing(status: Value, pending: Iterable[PendingActivityInfo]) -> Value:
    """The status with the activities that fail again and again, and how the last attempt ended.

    Only the server has this of an activity that no worker can start, or whose result cannot be sent.
    """
    failing = {
        each.activity_type.name: f"{each.activity_type.name}, which failed {each.attempt - 1} times: "
        f"{each.last_failure.message}"
        for each in pending
        if each.attempt - 1 > FAILURES_TOLERATED
        and each.HasField("last_failure")
        and not _goes_on(each)
    }
    if not failing:
        return status
    warnings = [row for row in status.get("warnings") or () if row["kind"] != "failing"]
    status = shapes.with_failing({**status, "warnings": warnings}, *failing.values())
    awaited = next((text for name, text in failing.items() if name not in BESIDE_THE_LOOP), None)
    if awaited and not status.get("waiting_for"):
        status["waiting_for"] = awaited
    if MONITOR in failing and status["state"] == "running":
        status["state"] = "unreachable"
        status["pods"] = [_out_of_sight(pod) for pod in status["pods"]]
    return status


def _out_of_sight(pod: Value) -> Value:
    """The pod without the claim that it starts or runs: it did when the monitor last saw it."""
    return {**pod, "state": "unreachable"} if pod["state"] in ("starting", "running") else pod


HOLDS_S = 5.0
"""Seconds after which an attempt of an activity that failed before counts as one that goes on."""


def _goes_on(pending: PendingActivityInfo) -> bool:
    """Whether earlier attempts failed and the one that is under way now beats.

    The monitor of a sound job lasts for days: its earlier failures, such as each worker that was killed
    meanwhile, say nothing of it. After any other failure the attempt has to last for `HOLDS_S`.
    """
    was_lost = pending.last_failure.HasField("timeout_failure_info")
    is_begun = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    beat, began = pending.last_heartbeat_time, pending.last_started_time
    lasts_s = (beat.ToMicroseconds() - began.ToMicroseconds()) / 1e6
    return is_begun and lasts_s > (0.0 if was_lost else HOLDS_S)


async def glance(job: FoundJob) -> Value:
    """The newest heartbeat of the monitor. After each report another attempt of this activity starts."""
    for pending in job.description.raw_description.pending_activities:
        if pending.activity_type.name == MONITOR and pending.heartbeat_details.payloads:
            (glance, *_) = await job.description.data_converter.decode(
                pending.heartbeat_details.payloads
            )
            return dict(glance) if isinstance(glance, Mapping) else {}
    return {}


# -- as ModelArts -------------------------------------------------------------------------------

LEFT_NO_WORD: Mapping[WorkflowExecutionStatus | None, str] = {
    WorkflowExecutionStatus.FAILED: "refused",
    WorkflowExecutionStatus.CANCELED: "stopped",
}
"""Rows of ModelArts' phases for a job that closed without a memo; any other was ended from outside."""


async def as_modelarts(job: FoundJob) -> Value:
    """The job in the shape of ModelArts; without a memo of it, what the server has."""
    from everstep.dialects.modelarts import view  # a tenth of a second, for this shape alone

    created_at = job.description.start_time.timestamp()
    if not job.is_open:
        word = LEFT_NO_WORD.get(job.description.status, "lost")
        left = await job.memo(MODELARTS)
        if left:
            return dict(left)
        reason = await job.failure()
        return view.unread(job.id, word, created_at=created_at, reason=reason)
    answer = dict(await job.query("status", {"shape": MODELARTS}))
    now = (await glance(job)).get("now")
    return view.aged(answer, now) if isinstance(now, int | float) else answer


# -- events -------------------------------------------------------------------------------------


async def all_events(job: FoundJob) -> list[Value]:
    """The newest 50, oldest first."""
    events = await job.answer("events")
    if events is not None or job.description.close_time is None:
        return list(events or [])
    reason = await job.failure()
    if reason is None:
        return []
    from everstep.chronicle import happenings  # a tenth of a second, for such a job alone

    return happenings.of_an_end(job.closed_as, reason, job.description.close_time.timestamp())


# -- restarts -----------------------------------------------------------------------------------


async def newest_restarts(job: FoundJob) -> list[Value]:
    """The newest 50 records, oldest first; of a job that could leave none, what its Recoveries say."""
    records = await job.answer("restarts")
    return list(records) if records is not None else await all_records(job, newest=[])


async def all_restarts(job: FoundJob) -> list[Value]:
    return await all_records(job, newest=await newest_restarts(job))


# -- why ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartChoice:
    """Which restart to show, by default the newest. Numbers count within a phase."""

    n: int | None = None
    phase: str | None = None

    def of(self, records: list[Value]) -> Value | None:
        """The newest of these records that is meant."""
        meant = (
            r
            for r in reversed(records)
            if self.n in (None, r["n"]) and self.phase in (None, r["phase"])
        )
        return next(meant, None)

    def __str__(self) -> str:
        number = "" if self.n is None else f" {self.n}"
        return f"restart{number}" + (f" of phase {self.phase}" if self.phase else "")


async def explained_of_lives(job: FoundJob, choice: RestartChoice, number: int | None) -> Value:
    """The shape of the query `explain`, from the newest life that has the restart, or from this one."""
    lives = await lives_known(job)
    chosen = [life for life in lives if number in (None, life.number)]
    if not chosen:
        problem = f"{job.id} has no life {number}; it has {len(lives)}"
        raise Failed(Exit.NOT_FOUND, f"{problem}: `everstep restarts {job.id}` lists them")
    if choice == RestartChoice():
        chosen = chosen[-1:]
    for life in reversed(chosen):
        explanation = await explained(life.job, choice)
        if explanation is not None:
            text = "\n".join([*_heading(life.number, len(lives)), explanation["text"]])
            return {**explanation, "life": life.number, "text": text}
    raise _no_restart(job.id, choice, number)


def _no_restart(job_id: str, choice: RestartChoice, number: int | None) -> Failed:
    where = "" if number is None else f" in life {number}"
    hint = f"`everstep restarts {job_id} --all` lists all"
    return Failed(Exit.NOT_FOUND, f"{job_id} has no {choice}{where}; {hint}")


def explained_from_file(ended: EndedJob, choice: RestartChoice, number: int | None) -> Value:
    """The same of a job that has ended, from its file."""
    if choice == RestartChoice() and number is None:
        return ended.explanation
    row = choice.of([row for row in ended.restarts if number in (None, row["life"])])
    if row is None:
        raise _no_restart(ended.id, choice, number)
    life = row["life"]
    record = {key: value for key, value in row.items() if key != "life"}
    text = "\n".join([*_heading(life, ended.lives), *_story(record)])
    return {"id": ended.id, "restart": record, "text": text, "life": life}


def _heading(life: int, lives: int) -> list[str]:
    """Which life of the ID it is, where there are several."""
    return [f"life {life} of {lives}"] if lives > 1 else []


async def explained(job: FoundJob, choice: RestartChoice) -> Value | None:
    """The shape of the query `explain`, over records of any age. None if this job has no such restart."""
    record = choice.of(await newest_restarts(job))
    if record is None and choice != RestartChoice():
        record = choice.of(await all_records(job, newest=[]))
        if record is None:
            return None
    status = await status_of(job) if choice == RestartChoice() else None
    if record is None:
        return _nothing(job, status or {})
    waits = shapes.present_lines(status) if status is not None and job.is_open else []
    return {"id": job.id, "restart": record, "text": "\n".join([*_story(record), *waits])}


def _story(record: Value) -> list[str]:
    """The restart in words, with what was kept of its ranks."""
    return [record_rows.story(record), *evidence_lines(record.get("evidence"))]


def _nothing(job: FoundJob, status: Value) -> Value:
    """Without a restart there is still the end to explain if it has come, or what the job waits for."""
    reason = f"; {status['state']}: {status['reason']}" if status.get("reason") else ""
    text = "\n".join([f"no restart yet{reason}", *shapes.present_lines(status)])
    return {"id": job.id, "restart": None, "text": text}


# -- the document -------------------------------------------------------------------------------


async def document_of(job: FoundJob) -> Value:
    """The document in force; of a job that has ended, the one that its last run began with, and when.

    Later changes are in `changes` only: the workflow that had the changed document has closed.
    """
    if job.is_open:
        return {**await job.query("document"), "as_of": None}
    return {
        "id": job.id,
        "document": await job.document(),
        "as_of": shapes.moment(job.description.start_time.timestamp()),
        "changes": await job.memo("changes") or [],
    }
