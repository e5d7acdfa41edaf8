"""Commands that query one job: `status`, `restarts`, `events`, `why`, `show`."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Annotated

import typer

from everstep.cli import pages, status_page
from everstep.cli.jobs.job_argument import JobId
from everstep.cli.output import AsJson
from everstep.cli.output import show as print_value
from everstep.client.job import AsyncJob


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
    job = AsyncJob(job_id)
    shape = asyncio.run(job.as_modelarts() if modelarts else job.status())
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
    job = AsyncJob(job_id)
    if mindcluster:
        print(json.dumps(asyncio.run(job.as_mindcluster(every=every)), indent=2))
        return
    rows = asyncio.run(job.restarts(every=every))
    print_value(rows, partial(pages.restarts, has_lives=rows.lives > 1), as_json=as_json)


def events(
    job_id: JobId,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many of the oldest.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, max=100, help="Print so many at most; else all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what happened to a job, oldest first: of each life of its ID the newest 50 things are kept."""
    rows = asyncio.run(AsyncJob(job_id).past_events())
    chosen_rows = rows[offset:][:limit]
    print_value(chosen_rows, partial(pages.events, has_lives=rows.lives > 1), as_json=as_json)


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
    value = asyncio.run(AsyncJob(job_id).why(n, phase=phase, life=life))
    print_value(value, pages.why, as_json=as_json)


def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Print the document that a job follows, and who changed it when: the newest 20 changes."""
    print_value(asyncio.run(AsyncJob(job_id).document()), pages.document, as_json=as_json)
