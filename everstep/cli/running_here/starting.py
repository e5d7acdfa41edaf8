"""The command `submit`: one job, started once."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from everstep.cli import pages
from everstep.cli.authoring.documents import CommandOption, File, LogPattern
from everstep.cli.output import AsJson, not_empty, show
from everstep.client.starts import submitted


def submit(
    file: File,
    *,
    job_id: Annotated[
        str | None, typer.Option("--id", help="The job's ID; else the document's name.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Take over the ID of a failed or stopped job.")
    ] = False,
    from_phase: Annotated[
        str | None, typer.Option(help="Begin with this phase; implies --again.", metavar="NAME")
    ] = None,
    command: CommandOption = None,
    log_pattern: LogPattern = None,
    cluster: Annotated[
        str | None,
        typer.Option(callback=not_empty, help="Run it on this cluster, whatever FILE says."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a job. Nothing is sent before the document has been validated.

    An ID is used once: a second submit of it is refused, so that nothing runs twice. With --again a
    job that failed or was stopped starts again under its ID, hence with its checkpoints; one that is
    about to end is waited for.
    """
    answer = submitted(
        file,
        job_id=job_id,
        again=again,
        from_phase=from_phase,
        command=command,
        log_pattern=log_pattern,
        cluster=cluster,
    )
    show(asyncio.run(answer), pages.submitted, as_json=as_json)
