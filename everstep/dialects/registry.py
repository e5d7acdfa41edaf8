"""All dialects, and the way from a document to a JobSpec.

    text -> read_text (documents.text) -> plain value -> dialect_of -> JobSpec (native.document, ...)

`compile_document` makes a job of a document, `validate` lists what is wrong with a text, `patch` changes the
document of a running job. The only error is `InvalidSpec`: one line that names each field. A dialect is a
folder and a row here. A document of another system may hold an overlay (`everstep:` or an annotation): a
fragment of the native `spec` for everything that its own format has no field for. `has_pods` of a cluster's
name is whether it makes Kubernetes pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from everstep.core.bounds import JOB_MOST, json_bytes
from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, scaled
from everstep.dialects.cerebras.dialect import CEREBRAS
from everstep.dialects.dialect import Dialect, HasPods, has_pods_by_name
from everstep.dialects.mindcluster.dialect import MINDCLUSTER
from everstep.dialects.modelarts.dialect import MODELARTS
from everstep.dialects.moves import moves
from everstep.dialects.native.dialect import NATIVE
from everstep.documents import merge
from everstep.documents import text as texts
from everstep.documents.plain import plain_document, plain_fragment
from everstep.documents.problems import refusal

LARGE = "comes to {size:.1f} MB when it is read; a job may have {most:.1f} MB: keep data in files"
MISSING_COMMAND = "missing; say what to run, for example python train.py"

DIALECTS: tuple[Dialect, ...] = (NATIVE, MODELARTS, CEREBRAS, MINDCLUSTER)
"""First match wins, so a native document stays native whatever else it holds."""

AS_PYYAML = tuple(dialect.as_pyyaml for dialect in DIALECTS if dialect.as_pyyaml)
"""Keys on top of a text that is read as PyYAML reads it."""


def read_text(text: str | bytes) -> dict[str, Any]:
    """The document in this text, as its dialect writes it."""
    return texts.read_text(text, as_pyyaml=AS_PYYAML, may_share=_may_share)


def _may_share(document: object) -> bool:
    return any(dialect.may_share(document) for dialect in DIALECTS)


def dialect_of(document: Mapping[str, Any]) -> Dialect:
    """The dialect this document is written in, by its shape alone."""
    for dialect in DIALECTS:
        if dialect.recognises(document):
            return dialect
    for dialect in DIALECTS:
        if dialect.looks_like(document):
            raise refusal([("kind", dialect.right_kind)])
    raise refusal([("document", "is no job document: begin with apiVersion: everstep/v1")])


def _compiled(document: dict[str, Any], dialect: Dialect, has_pods: HasPods) -> JobSpec:
    """The job of this document in this dialect, refused if it grew too large."""
    spec = dialect.compiles(document, has_pods)
    size = json_bytes(document) + len(to_json(spec))  # defaults add to its document
    if size > JOB_MOST:
        raise refusal([("document", LARGE.format(size=size / 1e6, most=JOB_MOST / 1e6))])
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What `everstep validate` says about a document: every problem, every note."""

    ok: bool
    dialect: str | None = None
    errors: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "dialect": self.dialect,
            "errors": [{"field": field, "message": message} for field, message in self.errors],
            "notes": [{"field": field, "message": message} for field, message in self.notes],
        }


def compile_document(
    document: object,
    *,
    time_scale: float = 1.0,
    needs_command: bool = True,
    has_pods: HasPods = has_pods_by_name,
) -> JobSpec:
    """Compile a document of any dialect, given as any JSON value.

    With `needs_command` a phase without a command is refused; without, such a document can be looked at.
    """
    plain = plain_document(document)
    dialect = dialect_of(plain)
    spec = _compiled(plain, dialect, has_pods)
    if needs_command and not all(phase.command for phase in spec.phases):
        notes = [(note.field, note.message) for note in spec.notes if note.field == dialect.command]
        raise refusal(notes or [(dialect.command, MISSING_COMMAND)])
    return scaled(spec, time_scale)


def fragment_of(document: dict[str, Any]) -> dict[str, Any]:
    """The document's fragment of the native `spec`: its overlay, or all of a native one."""
    return dialect_of(document).fragment(document)


def overlay_of(document: dict[str, Any]) -> str:
    """The key of the document under which its fragment of the native `spec` stands."""
    return dialect_of(document).overlay


def laid_over(document: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a fragment of the native `spec` laid over it."""
    return merge.merged(document, {dialect_of(document).overlay: change})


def patch(
    document: object, fragment: object, *, has_pods: HasPods = has_pods_by_name
) -> dict[str, Any]:
    """Lay the fragment over the document of a running job. Raises `InvalidSpec` for what may not change."""
    plain = plain_document(document)
    dialect = dialect_of(plain)
    whole = dialect.with_whole_overlay(plain)
    changed = merge.patch(whole, fragment, under=dialect.overlay)
    after = _compiled(changed, dialect, has_pods)
    try:
        before = _compiled(plain, dialect, has_pods)
    except InvalidSpec:  # by rules that are newer than the job: the change may mend it
        return changed
    change = plain_fragment(fragment, "patch")
    if problems := list(moves(before, after, change)):
        raise refusal(problems)
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What a command line sets whatever a document says; None leaves it as it is there."""

    command: str | None = None
    log_pattern: str | None = None
    cluster: str | None = None


NO_OVERRIDES = Overrides()


def overridden(document: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """The document with these values, in all its phases."""
    of_phases: dict[str, Any] = {}
    if overrides.command is not None:
        of_phases["command"] = overrides.command
    if overrides.log_pattern is not None:
        of_phases["progress"] = {"log_pattern": overrides.log_pattern}
    change = dict(of_phases)
    if of_phases and (phases := fragment_of(document).get("phases")):
        change["phases"] = [merge.merged(phase, of_phases) for phase in phases]
    if overrides.cluster is not None:
        change["cluster"] = overrides.cluster
    return laid_over(document, change) if change else document


def validate(
    text: str | bytes,
    overrides: Overrides = NO_OVERRIDES,
    *,
    has_pods: HasPods = has_pods_by_name,
) -> Verdict:
    """Judge the text of a document with these values: its problems, or notes for its author."""
    dialect = None
    try:
        document = read_text(text)
        dialect = dialect_of(document)
        document = overridden(document, overrides)
        spec = _compiled(document, dialect, has_pods)
    except InvalidSpec as error:
        name = dialect.name if dialect else None
        return Verdict(ok=False, dialect=name, errors=tuple(error.problems))
    notes = tuple((note.field, note.message) for note in spec.notes)
    return Verdict(ok=True, dialect=dialect.name, notes=notes)
