"""The command `report`: what happened to a job, or to all jobs of a time, as one page to send."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from temporalio.client import Client

from everstep.chronicle import shapes
from everstep.cli import completion
from everstep.cli.connection import NoServer, of_each, with_server
from everstep.cli.durations import parse_duration
from everstep.cli.exits import Exit, Failed
from everstep.cli.jobs import asking, ended_jobs
from everstep.cli.jobs.answers import NoResponse
from everstep.cli.jobs.ended_jobs import EndedJob, of_job_or_file
from everstep.cli.jobs.history import all_records, recovery_records, with_newest
from everstep.cli.jobs.job import FoundJob
from everstep.cli.jobs.lives import Life, lives_of, lives_since
from everstep.cli.output import AsJson, not_empty, show, shown
from everstep.dialects import job_memo
from everstep.report.fleet_report import FleetSource, fleet_report
from everstep.report.job_report import JobSource, job_report
from everstep.report.lives import LifeSource

Value = dict[str, Any]

NO_WORKER = "no worker answered: what only the job itself has is missing ({why})"
TERMINATED = "the job was ended from outside and left no report"
SILENT_JOBS = (
    "{count} jobs did not answer: of their restarts only those that Temporal lists are counted"
)
FROM_FILES = "no server answers: only jobs are counted whose `everstep run` ended on this machine"
NO_ISOLATION = (
    "no worker of the quarantine answered, so it is unknown until when nodes are isolated"
)
ISOLATION_S = 1.0
"""A report that is otherwise whole waits no longer for the quarantine."""


def report(
    job_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The job's ID; else give --since.",
            autocompletion=completion.job_ids,
            callback=not_empty,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Report all jobs that ran since then: 12h, 7d, 2w."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write FILE.html, FILE.md or FILE.json; else Markdown is printed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report what happened to a job: its restarts and why, where the time went, what was lost.

    The page needs nothing else: send it, print it, keep it. It works after the end of a job without a
    worker, and after that of its `run` without a server. With --since: of all jobs, the restarts by cause
    and the nodes that break most; without a server of those whose `run` ended here.
    """
    if (job_id is None) == (since is None):
        raise Failed(Exit.USAGE, "give the ID of a job, or --since 7d for all jobs of a week")
    if since is not None:
        age_s = parse_duration("--since", since)
        write = _writer(FLEET, output, as_json=as_json)
        write(_fleet_or_files(time.time() - age_s))
        return
    write = _writer(ONE_JOB, output, as_json=as_json)
    write(of_job_or_file(str(job_id), report_of, lambda ended: ended.report))


async def report_of(job: FoundJob) -> Value:
    return job_report(await source_of(job))


@dataclass(frozen=True, slots=True)
class Pages:
    """The functions of `render` for one kind of report. It is imported when a page is made."""

    html: str
    markdown: str

    def render(self, suffix: str, value: Value) -> str:
        from everstep.report import render

        by_suffix = {".html": self.html, ".htm": self.html, ".md": self.markdown}
        if suffix == ".json":
            return json.dumps(value, indent=2) + "\n"
        text: str = getattr(render, by_suffix[suffix])(value)
        return text


ONE_JOB = Pages("html", "markdown")
FLEET = Pages("fleet_html", "fleet_markdown")
SUFFIXES = (".html", ".htm", ".md", ".json")


def _writer(pages: Pages, output: Path | None, *, as_json: bool) -> Callable[[Value], None]:
    """How the report is written. A name that cannot be written to is refused before any work."""
    if output is None:
        return lambda value: show(value, lambda v: [pages.render(".md", v)], as_json=as_json)
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise Failed(Exit.USAGE, f"{output}: the name has to end in .html, .md or .json")
    if as_json and suffix != ".json":
        raise Failed(Exit.USAGE, f"{output}: with --json the name has to end in .json")
    if not output.parent.is_dir():
        raise Failed(Exit.USAGE, f"{output.parent} is no folder; make it first")

    def write(value: Value) -> None:
        replace_file(output, pages.render(suffix, value))
        print(f"{output}: {value['summary'][0]}")

    return write


def replace_file(path: Path, text: str) -> None:
    """The file with this content, or as it was: never half of it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


# -- all jobs of a time ---------------------------------------------------------------------------


ANSWER_S = 2.0
"""So long one of many jobs may take to answer."""


def _fleet_or_files(since: float) -> Value:
    """The report of all jobs; if no server answers, of those that have a file here, with a note."""
    try:
        return with_server(lambda client: _fleet(client, since))
    except NoServer:
        ended_here = ended_jobs.read_all()
        if not ended_here:
            raise
        print(f"note   {shown(FROM_FILES)}", file=sys.stderr)
        return _fleet_of_files(ended_here, since)


def _fleet_of_files(ended_here: Iterable[EndedJob], since: float) -> Value:
    """Each life that ended since then."""
    now = time.time()
    jobs = []
    for ended in ended_here:
        recent = [one for one in ended.sources if _ended_since(one["report"], since)]
        for number, source in enumerate(recent, start=1):
            life = LifeSource(number=number, status=source["status"], report=source["report"])
            jobs.append(JobSource(**source, now=now, lives=[life]))
    return fleet_report(FleetSource(jobs=jobs, since=since, now=now, gaps=[FROM_FILES]))


def _ended_since(report: Value, since: float) -> bool:
    ended_at = report.get("ended_at")
    return ended_at is not None and shapes.seconds(ended_at) >= since


async def sources_of_lives(lives: Iterable[Life]) -> list[JobSource]:
    """What a report of all jobs needs of each life."""
    return await of_each(lives, _one_of_many)


async def _fleet(client: Client, since: float) -> Value:
    """Each life of a job that is open, or closed since then."""
    jobs = await sources_of_lives(await lives_since(client, shapes.moment(since)))
    silent = sum(bool(source.status["silence"]) for source in jobs)
    gaps = [SILENT_JOBS.format(count=silent)] if silent else []
    return fleet_report(FleetSource(jobs=jobs, since=since, now=time.time(), gaps=gaps))


async def _one_of_many(life: Life) -> JobSource:
    """The data of one life: all of it, or what the server has if it does not answer."""
    job = life.job
    gaps: list[str] = []
    try:
        async with asyncio.timeout(ANSWER_S if job.is_open else None):
            status = {**await asking.status_of(job), "silence": None}
            report = await _report_of(job, gaps)
    except (NoResponse, TimeoutError):
        state = job.attribute("TrainState") or "pending"
        status = {**shapes.status_unread(job.id), "state": state, "silence": "no worker answered"}
        report = _of_server(job)
    records = await all_records(job, newest=job_memo.restarts_of(report))
    lives = [LifeSource(number=life.number, status=status, report=report)]
    return JobSource(status=status, report=report, records=records, now=time.time(), lives=lives)


# -- what a report is made from -------------------------------------------------------------------


async def source_of(job: FoundJob) -> JobSource:
    """The data of a job and of the earlier lives of its ID, from server, worker and quarantine."""
    gaps: list[str] = []
    status, report, records, document, lives = await asyncio.gather(
        asking.status_known(job),
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
    status = await asking.status_of(life.job)
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
    from everstep.cli.cluster.nodes import quarantined_nodes

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
