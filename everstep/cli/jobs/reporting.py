"""The command `report`: what happened to a job, or to all jobs of a time, as one page to send."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from temporalio.client import Client

from everstep.cli.connection import with_server
from everstep.cli.exits import Exit, Failed
from everstep.cli.jobs import asking
from everstep.cli.jobs.answers import NobodyAnswered
from everstep.cli.jobs.history import all_records
from everstep.cli.jobs.job import FoundJob, find
from everstep.cli.output import AsJson, show
from everstep.dialects import job_memo
from everstep.report.job_report import JobSource, job_report

Value = dict[str, Any]

NO_WORKER = "no worker answered: what the job itself knows is missing ({why})"
TERMINATED = "the job was ended from outside and left no report"
NO_ISOLATION = (
    "no worker of the quarantine answered, so it is unknown until when nodes are isolated"
)
ISOLATION_S = 1.0
"""A report that is otherwise whole waits no longer for the quarantine."""


def report(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's ID.")],
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

    The page needs nothing else: send it, print it, keep it. It works after the end of a job without a worker.
    """
    write = _writer(output, as_json=as_json)

    async def made(client: Client) -> Value:
        return job_report(await source_of(await find(client, job_id)))

    write(with_server(made))


def _writer(output: Path | None, *, as_json: bool) -> Callable[[Value], None]:
    """How the report is written. A file name that says no format is refused before any work."""
    from everstep.report import render

    if output is None:
        return lambda value: show(value, lambda v: [render.markdown(v)], as_json=as_json)
    formats: Mapping[str, Callable[[Value], str]] = {
        ".html": render.html,
        ".htm": render.html,
        ".md": render.markdown,
        ".json": _json,
    }
    to_text = formats.get(output.suffix.lower())
    if to_text is None:
        raise Failed(Exit.USAGE, f"{output}: the name has to end in .html, .md or .json")
    if as_json and output.suffix.lower() != ".json":
        raise Failed(Exit.USAGE, f"{output}: with --json the name has to end in .json")
    if not output.parent.is_dir():
        raise Failed(Exit.USAGE, f"{output.parent} is no folder; make it first")

    def write(value: Value) -> None:
        replace_file(output, to_text(value))
        print(f"{output}: {value['summary'][0]}")

    return write


def _json(value: Value) -> str:
    return json.dumps(value, indent=2) + "\n"


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


# -- what a report is made from -------------------------------------------------------------------


async def source_of(job: FoundJob) -> JobSource:
    """Everything that the server, the worker and the quarantine know of a job now."""
    gaps: list[str] = []
    status = await asking.status_known(job)
    if status["silence"]:
        gaps.append(NO_WORKER.format(why=status["silence"]))
    report = await _report_of(job, gaps)
    records = await all_records(job, newest=job_memo.restarts_of(report))
    return JobSource(
        status=status,
        report=report,
        records=records,
        now=time.time(),
        document=await job.document(),
        isolation=await _isolation(job, status, gaps),
        gaps=gaps,
    )


async def _report_of(job: FoundJob, gaps: list[str]) -> Value:
    """The JobReport; of a job that cannot give one, what the server knows."""
    try:
        found = await job.answer("report")
    except NobodyAnswered:
        found = None
    closed = job.seen.close_time
    ended = {} if closed is None else {"ended_at": closed.isoformat()}
    if found is not None:
        return {**found, **({} if found["ended_at"] else ended)}
    if not job.is_open:
        gaps.append(TERMINATED)
    created = {"created_at": job.seen.start_time.isoformat(), "ended_at": None}
    return {**created, **ended, "reason": await job.failure(), "phases": []}


async def _isolation(job: FoundJob, status: Value, gaps: list[str]) -> dict[str, Value]:
    """The quarantine's entries of the job's isolated nodes, by name."""
    from everstep.cli.cluster.nodes import known

    if not status["isolated_nodes"]:
        return {}
    try:
        async with asyncio.timeout(ISOLATION_S):
            rows = await known(job.client, str(job.attribute("TrainCluster") or "local"))
    except (NobodyAnswered, TimeoutError):
        gaps.append(NO_ISOLATION)
        return {}
    return {row["name"]: row for row in rows}
