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
from everstep.cli.durations import parse_duration
from everstep.cli.output import AsJson, not_empty, show, shown
from everstep.cli.server import with_server
from everstep.client.connection import NoServer
from everstep.client.exit_codes import Exit, Failed
from everstep.client.job import AsyncJob
from everstep.client.jobs import ended_jobs
from everstep.client.jobs.ended_jobs import EndedJob
from everstep.client.jobs.lives import lives_since
from everstep.client.jobs.report_sources import sources_of_lives
from everstep.report.fleet_report import FleetSource, fleet_report
from everstep.report.job_report import JobSource
from everstep.report.lives import LifeSource

Value = dict[str, Any]

SILENT_JOBS = (
    "{count} jobs did not answer: of their restarts only those that Temporal lists are counted"
)
FROM_FILES = "no server answers: only jobs are counted whose `everstep run` ended on this machine"


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
    write(asyncio.run(AsyncJob(str(job_id)).report()))


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


async def _fleet(client: Client, since: float) -> Value:
    """Each life of a job that is open, or closed since then."""
    jobs = await sources_of_lives(await lives_since(client, shapes.moment(since)))
    silent = sum(bool(source.status["silence"]) for source in jobs)
    gaps = [SILENT_JOBS.format(count=silent)] if silent else []
    return fleet_report(FleetSource(jobs=jobs, since=since, now=time.time(), gaps=gaps))
