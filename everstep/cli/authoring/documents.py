"""Commands about a document alone: `validate`, `explain`, `schema`, `init`. No server is needed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.agent.observing import hardware
from everstep.cli import completion, pages
from everstep.cli.output import AsJson, not_empty, show
from everstep.client import machine
from everstep.client.documents.documents import (
    JobDocument,
    compiled,
    job_in,
    located,
    missing_here,
    of_backend,
    read,
)
from everstep.client.exit_codes import Exit, Failed
from everstep.core.spec import JobSpec
from everstep.dialects import registry
from everstep.dialects.native import schema as native
from everstep.dialects.native.template import TEMPLATE
from everstep.dialects.registry import Overrides

if TYPE_CHECKING:
    # Imports the Temporal client, which takes longer than most commands of this module.
    from temporalio.client import Client

    from everstep.core.state import JobState

FILE = typer.Argument(metavar="FILE", help="The job document, YAML or JSON; - is standard input.")
File = Annotated[str, FILE]
MaybeFile = Annotated[str | None, FILE]
CommandOption = Annotated[
    str | None,
    typer.Option("--command", metavar="TEXT", help="Run this, by /bin/sh -c, whatever FILE says."),
]
LogPattern = Annotated[
    str | None,
    typer.Option(
        metavar="RE",
        help=r"What the command prints: hf, lightning, tqdm, json:KEY or 'step (?P<step>\d+)'.",
    ),
]


def validate(
    file: File,
    *,
    command: CommandOption = None,
    log_pattern: LogPattern = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            callback=not_empty,
            help="For this cluster, whatever FILE says; its API server is asked too, by a dry run.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a job document: print its problems, what in it has no effect, and what this machine lacks."""
    text = read(file)
    overrides = Overrides(command=command, log_pattern=log_pattern, cluster=cluster)
    verdict = registry.validate(text, overrides, has_pods=machine.has_pods)
    levels: dict[str, Any] = {}
    if verdict.ok:
        from everstep.cli.authoring.explain import possible_levels  # all rules

        document = registry.overridden(registry.read_text(text), overrides)
        job = compiled(document, needs_command=False, has_pods=machine.has_pods)
        missed = ((note.field, note.message) for note in missing_here(located(job, file)))
        broken, backend_notes = of_backend(job)
        notes = (*verdict.notes, *of_this_machine(job), *backend_notes, *missed)
        if cluster is not None and not broken:
            broken = _refused(job.spec, cluster)
        verdict = replace(verdict, ok=not broken, errors=broken, notes=notes)
        levels = possible_levels(job.spec)
    show({**verdict.to_dict(), **levels}, pages.verdict, as_json=as_json)
    if not verdict.ok:
        raise typer.Exit(Exit.USAGE)


def _refused(spec: JobSpec, cluster: str) -> tuple[tuple[str, str], ...]:
    """What the cluster would refuse of this job's pods."""
    if not machine.has_pods(cluster):
        raise Failed(Exit.USAGE, f"cluster {cluster} makes no pods: leave out --cluster")
    return tuple(asyncio.run(machine.tools(cluster).refusals(spec)))


def explain(
    file: MaybeFile = None,
    code: Annotated[
        str | None,
        typer.Option("--code", help="A fault code, such as 80E01801 or XID 79: what it means."),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="ID",
            help="A running job instead of a FILE: what its next fault would lead to.",
            autocompletion=completion.job_ids,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what would happen for every class of fault under this document.

    With --job, under that of a job as it runs, with all budgets that it has used. With --code, what that code
    means, and what the document, if one is given, would do about it.
    """
    from everstep.cli.authoring.explain import code_explained, explained, explained_now  # all rules

    if job_id is not None:
        if file is not None or code is not None:
            raise Failed(Exit.USAGE, "--job stands alone: it has a document of its own")
        show(explained_now(_state_of(job_id)), pages.explanation, as_json=as_json)
        return
    spec = None if file is None else job_in(file, needs_command=False).spec
    if code is not None and code.strip():
        show(code_explained(code, spec), pages.code, as_json=as_json)
    elif spec is not None:
        show(explained(spec), pages.explanation, as_json=as_json)
    else:
        raise Failed(Exit.USAGE, "explain what? Give a FILE, or --code CODE, or both, or --job ID")


def _state_of(job_id: str) -> JobState:
    """What the rules of an open job depend on."""
    from everstep.cli.server import with_server
    from everstep.client.jobs.answers import send_query
    from everstep.client.jobs.found_job import find
    from everstep.core.state import JobState

    async def state(client: Client) -> JobState:
        job = await find(client, job_id)
        if not job.is_open:
            end = await job.end()
            raise Failed(
                Exit.USAGE, f"{job.id} has ended ({end}): nothing follows a fault any more"
            )
        job_state: JobState = await send_query(client, job.id, "state", result_type=JobState)
        return job_state

    return with_server(state)


def schema() -> None:
    """Print the JSON Schema of the native document, for editors.

    `validate` is stricter: it reads a document as a whole. docs/document.md has every key in words.
    """
    print(json.dumps(native.schema(), indent=2))


def init(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Where to; - prints it.", show_default=True)
    ] = "job.yaml",
) -> None:
    """Write a job document to begin with, with a comment for everything else one often wants.

    A file that is there already stays as it is.
    """
    if file == "-":
        print(TEMPLATE, end="")
        return
    try:
        with Path(file).open("x", encoding="utf-8") as opened:
            opened.write(TEMPLATE)
    except FileExistsError:
        raise Failed(Exit.USAGE, f"{file} is there already; name another file") from None
    print(f"{file} is written; `everstep validate {file}`, then `everstep run {file}`")


def of_this_machine(job: JobDocument) -> Iterator[tuple[str, str]]:
    """Notes about this machine's devices for the author of a document, if the job may run here."""
    wants = [phase for phase in job.spec.phases if phase.accelerators_per_node != 0]
    if machine.has_pods(job.spec.cluster) or not wants:
        return
    here = hardware.devices(os.environ.get("EVERSTEP_ACCELERATOR", hardware.AUTO))
    field = f"{registry.overlay_of(job.document)}.accelerator"
    if here.kind in hardware.KINDS:
        yield field, f"this machine has {here} ({here.why})"
    else:
        yield field, f"no device is found on this machine ({here.why}): simulated ones stand in"
