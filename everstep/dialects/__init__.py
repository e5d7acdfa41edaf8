"""Job documents of every dialect, as text or as a value -> one JobSpec, or one `InvalidSpec`.

    text -> read_text (text) -> plain value (plain) -> dialect_of (registry) -> JobSpec (native, ...)

Whatever comes in, the only error that comes out is `InvalidSpec`: one line that names each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, scaled
from everstep.dialects.dialect import Dialect
from everstep.dialects.native.schema import schema
from everstep.dialects.registry import DIALECTS, compiled, dialect_of
from everstep.documents import merge
from everstep.documents.plain import plain_document
from everstep.documents.problems import refusal
from everstep.documents.sizes import fitting
from everstep.documents.text import read_text, written

__all__ = [
    "DIALECTS",
    "Dialect",
    "Verdict",
    "compile_document",
    "fragment_of",
    "laid_over",
    "overlay_of",
    "patch",
    "read_text",
    "schema",
    "validate",
    "written",
]


MISSING_COMMAND = "missing; say what to run, for example python train.py"


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
    document: object, *, time_scale: float = 1.0, needs_command: bool = True
) -> JobSpec:
    """The job that a document, of any dialect and as any JSON value, asks for.

    `needs_command`: it is to be run, so it must say what; to be looked at it need not.
    """
    plain = plain_document(document)
    dialect = dialect_of(plain)
    spec = fitting(plain, compiled(plain, dialect))
    if needs_command and not all(phase.command for phase in spec.phases):
        told = [(note.field, note.message) for note in spec.notes if note.field == dialect.command]
        raise refusal(told or [(dialect.command, MISSING_COMMAND)])
    return scaled(spec, time_scale)


def fragment_of(document: dict[str, Any]) -> dict[str, Any]:
    """What a document says in words of the native `spec`, wherever its dialect has a place for them."""
    return dialect_of(document).fragment(document)


def overlay_of(document: dict[str, Any]) -> str:
    """The key under which a document says something in words of the native `spec`."""
    return dialect_of(document).overlay


def laid_over(document: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a fragment of the native `spec` laid over it."""
    return merge.merged(document, {dialect_of(document).overlay: change})


def patch(document: object, fragment: object) -> dict[str, Any]:
    """The same for a job that runs: `InvalidSpec` for what cannot change then."""
    plain = plain_document(document)
    return merge.patch(plain, fragment, under=dialect_of(plain).overlay)


def validate(text: str | bytes) -> Verdict:
    """Whether the text is a job document that can be run, and what its author should know."""
    dialect = None
    try:
        document = read_text(text)
        dialect = dialect_of(document)
        spec = fitting(document, compiled(document, dialect))
    except InvalidSpec as error:
        name = dialect.name if dialect else None
        return Verdict(ok=False, dialect=name, errors=tuple(error.problems))
    notes = tuple((note.field, note.message) for note in spec.notes)
    return Verdict(ok=True, dialect=dialect.name, notes=notes)
