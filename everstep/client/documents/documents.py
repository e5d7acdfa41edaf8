"""Job documents of this machine: read from files, checked, and made ready for a start here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.client import machine
from everstep.client.documents import missing
from everstep.client.exit_codes import Exit, Failed
from everstep.core.bounds import DOCUMENT_MOST
from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, Note
from everstep.dialects import registry
from everstep.dialects.dialect import HasPods
from everstep.dialects.registry import NO_OVERRIDES, Overrides
from everstep.documents.text import read_text

UNNAMED = "the document"
"""What messages call a document that no file has."""


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
        return compiled(document, needs_command=needs_command, has_pods=has_pods)
    except InvalidSpec as error:
        raise _wrong(file, error) from None


def job_of(
    document: Mapping[str, Any],
    *,
    overrides: Overrides = NO_OVERRIDES,
    has_pods: HasPods = machine.has_pods,
) -> JobDocument:
    """The job of a document that no file has; its relative paths begin at the current directory."""
    try:
        changed = registry.overridden(dict(document), overrides)
        job = compiled(changed, needs_command=True, has_pods=has_pods)
    except InvalidSpec as error:
        raise _wrong(UNNAMED, error) from None
    return located(job, "-", has_pods=has_pods)


def compiled(document: dict[str, Any], *, needs_command: bool, has_pods: HasPods) -> JobDocument:
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
        return compiled(document, needs_command=False, has_pods=has_pods)
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
    all_of_them = "" if file == UNNAMED else f": `everstep validate {file}` lists them"
    more = f" (and {len(more_problems)} more{all_of_them})" if more_problems else ""
    return Failed(Exit.USAGE, f"{file}: {field}: {message}{more}")
