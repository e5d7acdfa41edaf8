"""Commands about a document alone: `validate`, `explain`, `schema`, `init`. No server is needed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.agent.observing import hardware
from everstep.cli import completion, machine, pages
from everstep.cli.authoring import missing
from everstep.cli.exits import Exit, Failed
from everstep.cli.output import AsJson, not_empty, show
from everstep.core.bounds import DOCUMENT_MOST
from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, Note
from everstep.dialects import registry
from everstep.dialects.dialect import HasPods
from everstep.dialects.native import schema as native
from everstep.dialects.native.template import TEMPLATE
from everstep.dialects.registry import NO_OVERRIDES, Overrides
from everstep.documents.text import read_text

if TYPE_CHECKING:
    # Imports the Temporal client, which takes longer than most commands of this module.
    from everstep.cli.jobs.job import FoundJob
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """A document that can be run: as written, and as read."""

    document: dict[str, Any]
    spec: JobSpec
    is_from_command: bool = False  # made from a command line
    is_fresh: bool = False  # run it under an unused ID, whatever ran before
    has_chosen_id: bool = False  # its ID was given; else it is the name of its script
    fresh_line: str = ""  # the command line that runs it as a new job
    has_output: bool = True  # show what its processes print


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
    if verdict.ok:
        document = registry.overridden(registry.read_text(text), overrides)
        job = _compiled(document, needs_command=False, has_pods=machine.has_pods)
        missed = ((note.field, note.message) for note in missing_here(located(job, file)))
        broken, backend_notes = of_backend(job)
        notes = (*verdict.notes, *of_this_machine(job), *backend_notes, *missed)
        if cluster is not None and not broken:
            broken = _refused(job.spec, cluster)
        verdict = replace(verdict, ok=not broken, errors=broken, notes=notes)
    show(verdict.to_dict(), pages.verdict, as_json=as_json)
    if not verdict.ok:
        raise typer.Exit(Exit.USAGE)


Problems = tuple[tuple[str, str], ...]


def of_backend(job: JobDocument) -> tuple[Problems, Problems]:
    """What the backend of the document's cluster would refuse, and its notes. No cluster is reached."""
    cluster, overlay = job.spec.cluster, registry.overlay_of(job.document)
    if not machine.has_pods(cluster):
        return (), ()  # processes have no rules beside those of documents
    try:
        tools = machine.tools(cluster)
    except InvalidSpec as error:
        what = f"makes pods, and their rules are not checked here: {error}"
        return (), ((f"{overlay}.cluster", what),)
    broken, notes = tools.broken_rules(job.spec), tools.notes(job.spec)
    return _in_overlay(broken, overlay), _in_overlay(notes, overlay)


def _in_overlay(problems: list[tuple[str, str]], overlay: str) -> Problems:
    """The problems with fields as this document writes them: a backend names those of a native one."""
    return tuple((f"{overlay}{field.removeprefix('spec')}", what) for field, what in problems)


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
    from everstep.cli.jobs.answers import send_query
    from everstep.cli.jobs.job import of_job
    from everstep.core.state import JobState

    async def state(job: FoundJob) -> JobState:
        if not job.is_open:
            end = await job.end()
            raise Failed(
                Exit.USAGE, f"{job.id} has ended ({end}): nothing follows a fault any more"
            )
        job_state: JobState = await send_query(job.client, job.id, "state", result_type=JobState)
        return job_state

    return of_job(job_id, state)


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


def read(file: str) -> bytes:
    """The bytes of the file. Of one that is too large, one byte more than a document may have."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(DOCUMENT_MOST + 1)
        with Path(file).open("rb") as opened:
            return opened.read(DOCUMENT_MOST + 1)
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise Failed(Exit.USAGE, f"{file}: {why}; give the path of a job document") from None


FRAGMENT = "a fragment of `spec`, such as nodes: 2"


def fragment(text: bytes, *, called: str, what: str = FRAGMENT) -> dict[str, Any]:
    """The mapping in this text, `what` it should be; `called` is what a problem begins with."""
    if not text.strip():
        raise Failed(Exit.USAGE, f"{called} is empty; write {what}")
    try:
        return read_text(text)
    except InvalidSpec as error:
        raise _wrong(called, error) from None


def job_in(
    file: str,
    *,
    needs_command: bool = True,
    overrides: Overrides = NO_OVERRIDES,
    has_pods: HasPods = machine.has_pods,
) -> JobDocument:
    """The job in the file with these values, or `Failed` with the first problem."""
    try:
        document = registry.overridden(registry.read_text(read(file)), overrides)
        return _compiled(document, needs_command=needs_command, has_pods=has_pods)
    except InvalidSpec as error:
        raise _wrong(file, error) from None


def _compiled(document: dict[str, Any], *, needs_command: bool, has_pods: HasPods) -> JobDocument:
    spec = registry.compile_document(document, needs_command=needs_command, has_pods=has_pods)
    return JobDocument(document=document, spec=spec)


def job_here(
    file: str,
    *,
    overrides: Overrides = NO_OVERRIDES,
    has_pods: HasPods = machine.has_pods,
) -> JobDocument:
    """The job in the file, for a start on this machine: relative paths become absolute.

    They begin at the folder of the document, not at the working directory of the worker. A document without
    `workdir` whose files are found only from the current directory begins there.
    """
    job = job_in(file, overrides=overrides, has_pods=has_pods)
    return located(job, file, has_pods=has_pods)


def missing_here(job: JobDocument) -> tuple[Note, ...]:
    """Notes on what the job needs and this machine lacks, if it is to run here."""
    if job.spec.cluster != machine.USUAL or machine.has_pods(job.spec.cluster):
        return ()
    workdir = f"{registry.overlay_of(job.document)}.workdir"
    return missing.notes(
        job.spec, workdir=workdir, command=registry.dialect_of(job.document).command
    )


def located(job: JobDocument, file: str, *, has_pods: HasPods = machine.has_pods) -> JobDocument:
    """The job with absolute paths of its folders on this machine."""
    if has_pods(job.spec.cluster):
        return job
    here = Path.cwd()
    folder = here if file == "-" else Path(file).absolute().parent
    fragment = registry.fragment_of(job.document)
    begin = (
        folder / fragment["workdir"] if "workdir" in fragment else _begin(job.spec, folder, here)
    )
    changes: dict[str, Any] = {"workdir": str(begin)}
    if fragment.get("phases"):
        changes["phases"] = [
            {**phase, "workdir": str(folder / phase["workdir"])} if "workdir" in phase else phase
            for phase in fragment["phases"]
        ]
    document = registry.laid_over(job.document, changes)
    try:
        return _compiled(document, needs_command=False, has_pods=has_pods)
    except InvalidSpec as error:  # the folder's name may be none that a document can hold
        raise _wrong(file, error) from None


def _begin(spec: JobSpec, folder: Path, here: Path) -> Path:
    """The document's folder; the current one if that has files of the commands which the folder lacks."""
    files = {word for phase in spec.phases for word in _words(phase.command)}
    in_folder = {word for word in files if os.path.isfile(folder / word)}  # noqa: PTH113  # never raises
    in_here = {word for word in files if os.path.isfile(here / word)}  # noqa: PTH113  # never raises
    return here if in_folder < in_here else folder


def _words(command: tuple[str, ...]) -> Iterator[str]:
    """What may be the name of a file in a command, or in one that a shell reads."""
    for word in command:
        yield from word.split()


def _wrong(file: str, error: InvalidSpec) -> Failed:
    (field, message), *more_problems = error.problems
    more = (
        f" (and {len(more_problems)} more: `everstep validate {file}` lists them)"
        if more_problems
        else ""
    )
    return Failed(Exit.USAGE, f"{file}: {field}: {message}{more}")
