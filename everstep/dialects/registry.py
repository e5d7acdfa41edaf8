"""Which kinds of job documents there are. A dialect is a folder and a row here.

What a dialect has no word for is said in a fragment of the native `spec` (`everstep:` or an annotation)
that its folder lays over its own answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.core.spec import JobSpec
from everstep.dialects import cerebras, mindcluster, modelarts, native
from everstep.dialects.dialect import Dialect
from everstep.documents.problems import refusal

DIALECTS: tuple[Dialect, ...] = (
    native.DIALECT,
    modelarts.DIALECT,
    cerebras.DIALECT,
    mindcluster.DIALECT,
)
"""First match wins, so a native document stays native whatever else it holds."""


def dialect_of(document: Mapping[str, Any]) -> Dialect:
    """The dialect this document is written in, by its shape alone."""
    for dialect in DIALECTS:
        if dialect.recognises(document):
            return dialect
    for dialect in DIALECTS:
        if dialect.looks_like(document):
            raise refusal([("kind", dialect.right_kind)])
    raise refusal([("document", "is no job document: begin with apiVersion: everstep/v1")])


def compiled(document: dict[str, Any], dialect: Dialect) -> JobSpec:
    """The job this document asks for, read as that dialect."""
    if dialect.compiles is None:
        what = f"{dialect.title} documents are not read yet; write a native one, everstep/v1"
        raise refusal([("document", f"is recognised by `{dialect.shape}`, but {what}")])
    return dialect.compiles(document)
