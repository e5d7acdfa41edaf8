"""The status of a job: what its workflow answers, completed by what the server alone has of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from everstep.chronicle import shapes
from everstep.client.connection import UnlessAbsent, ui_link
from everstep.client.jobs.answers import NoResponse, newest_answer, send_query
from everstep.client.jobs.failures import readable
from everstep.client.jobs.found_job import FoundJob, find
from everstep.client.jobs.lives import lives_of
from everstep.core import names
from everstep.core.waits import WaitKind
from everstep.dialects.modelarts import NAME as MODELARTS

MONITOR = "monitor"
"""The activity whose heartbeat has the progress of the training."""

BESIDE_THE_LOOP = frozenset({"publish"})
"""Activities for which no job waits."""

Value = dict[str, Any]


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
    pending = await readable(job.client, job.description.raw_description.pending_activities)
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
        each.activity_type.name: WaitKind.FAILING.of(
            each.activity_type.name, each.attempt - 1, each.last_failure.message
        )
        for each in pending
        if each.attempt - 1 > FAILURES_TOLERATED
        and each.HasField("last_failure")
        and not _goes_on(each)
    }
    if not failing:
        return status
    warnings = [row for row in status.get("warnings") or () if row["kind"] != "failing"]
    texts = (cause.sentence for cause in failing.values())
    status = shapes.with_failing({**status, "warnings": warnings}, *texts)
    awaited = next((cause for name, cause in failing.items() if name not in BESIDE_THE_LOOP), None)
    if awaited and not status.get("waiting_for"):
        status |= {"waiting_for": awaited.sentence, "waiting_reason": awaited.reason}
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
