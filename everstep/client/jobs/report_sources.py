"""What the report of a job is made from: answers of its workflow, of the server and of the quarantine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from everstep.chronicle import shapes
from everstep.client.connection import of_each
from everstep.client.jobs.answers import NoResponse
from everstep.client.jobs.found_job import FoundJob
from everstep.client.jobs.history import all_records, recovery_records, with_newest
from everstep.client.jobs.lives import Life, lives_of
from everstep.client.jobs.status import status_known, status_of
from everstep.client.quarantine import quarantined_nodes
from everstep.dialects import job_memo
from everstep.report.job_report import JobSource, job_report
from everstep.report.lives import LifeSource

Value = dict[str, Any]

NO_WORKER = "no worker answered: what only the job itself has is missing ({why})"
TERMINATED = "the job was ended from outside and left no report"
NO_ISOLATION = (
    "no worker of the quarantine answered, so it is unknown until when nodes are isolated"
)
ISOLATION_S = 1.0
"""A report that is otherwise whole waits no longer for the quarantine."""
ANSWER_S = 2.0
"""Seconds that one of many jobs may take to answer."""


async def report_of(job: FoundJob) -> Value:
    return job_report(await source_of(job))


async def sources_of_lives(lives: Iterable[Life]) -> list[JobSource]:
    """What a report of all jobs needs of each life."""
    return await of_each(lives, _one_of_many)


async def _one_of_many(life: Life) -> JobSource:
    """The data of one life: all of it, or what the server has if it does not answer."""
    job = life.job
    gaps: list[str] = []
    try:
        async with asyncio.timeout(ANSWER_S if job.is_open else None):
            status = {**await status_of(job), "silence": None}
            report = await _report_of(job, gaps)
    except (NoResponse, TimeoutError):
        state = job.attribute("TrainState") or "pending"
        status = {**shapes.status_unread(job.id), "state": state, "silence": "no worker answered"}
        report = _of_server(job)
    records = await all_records(job, newest=job_memo.restarts_of(report))
    lives = [LifeSource(number=life.number, status=status, report=report)]
    return JobSource(status=status, report=report, records=records, now=time.time(), lives=lives)


async def source_of(job: FoundJob) -> JobSource:
    """The data of a job and of the earlier lives of its ID, from server, worker and quarantine."""
    gaps: list[str] = []
    status, report, records, document, lives = await asyncio.gather(
        status_known(job),
        _report_of(job, gaps),
        recovery_records(job),
        job.document(),
        lives_of(job),
    )
    newest = LifeSource(number=lives[-1].number, status=status, report=report)
    if status["silence"]:
        gaps.insert(0, NO_WORKER.format(why=status["silence"]))
    return JobSource(
        status=status,
        report=report,
        records=with_newest(records, job_memo.restarts_of(report)),
        now=time.time(),
        document=document,
        isolation=await _isolation(job, status, gaps),
        gaps=gaps,
        lives=[*await of_each(lives[:-1], _earlier_life), newest],
    )


async def _earlier_life(life: Life) -> LifeSource:
    """The data of a life that is over: what it left, else what the server has."""
    status = await status_of(life.job)
    return LifeSource(number=life.number, status=status, report=await _report_of(life.job, []))


async def _report_of(job: FoundJob, gaps: list[str]) -> Value:
    """The JobReport; if the job has none, what the server has."""
    try:
        report = await job.answer("report")
    except NoResponse:
        report = None
    closed = job.description.close_time
    ended = {} if closed is None else {"ended_at": closed.isoformat()}
    if report is not None:
        return {**report, **({} if report.get("ended_at") else ended)}
    if not job.is_open:
        gaps.append(TERMINATED)
    return {**_of_server(job), **ended, "reason": await job.failure()}


def _of_server(job: FoundJob) -> Value:
    """The JobReport of a job that does not answer, with what the server has."""
    created = job.description.start_time.isoformat()
    return {"created_at": created, "ended_at": None, "reason": None, "phases": []}


async def _isolation(job: FoundJob, status: Value, gaps: list[str]) -> dict[str, Value]:
    """The quarantine's entries of the job's isolated nodes, by name."""
    if not status["isolated_nodes"]:
        return {}
    try:
        async with asyncio.timeout(ISOLATION_S):
            rows = await quarantined_nodes(
                job.client, str(job.attribute("TrainCluster") or "local")
            )
    except (NoResponse, TimeoutError):
        gaps.append(NO_ISOLATION)
        return {}
    return {row["name"]: row for row in rows}
