"""Which kinds of job documents there are, how each is recognised, and who reads it.

A dialect is a file that compiles it and a row here. What a dialect has no word for will be said in
a fragment of the native `spec` (`everstep:` or an annotation) that its file lays over its own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.core.spec import JobSpec
from everstep.documents import modelarts
from everstep.documents.modelarts_shapes import KINDS
from everstep.documents.native import compile_native
from everstep.documents.problems import refusal

THEIR_PREFIX = "fault-tolerance/"
NO_KIND_OF_MODELARTS = "must be one that a ModelArts document has, for example kind: job"
MINDCLUSTER_LABELS = frozenset({"fault-scheduling", "ring-controller.atlas"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of document. `compiles` raises `InvalidSpec`; None: it is not read yet."""

    name: str
    title: str
    shape: str
    recognises: Callable[[Mapping[str, Any]], bool]
    compiles: Callable[[dict[str, Any]], JobSpec] | None = None
    command: str = "spec.command"
    overlay: str = "everstep"  # the key under which it holds words of the native `spec`
    fragment: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document["spec"]


def _is_native(document: Mapping[str, Any]) -> bool:
    version = document.get("apiVersion")
    ours = isinstance(version, str) and version.startswith("everstep")
    return ours or document.get("kind") == "TrainingJob"


def _is_modelarts(document: Mapping[str, Any]) -> bool:
    """By `kind`, whose values are nobody else's; it has a default, so `algorithm` tells as well."""
    kind = document.get("kind")
    if kind is None:
        return "apiVersion" not in document and {"metadata", "algorithm"} <= {*document}
    others = {"metadata", "algorithm", "spec"} & {*document}
    return isinstance(kind, str) and kind in KINDS and bool(others)


def _looks_like_modelarts(document: Mapping[str, Any]) -> bool:
    """Whether only its kind is wrong or missing."""
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    names = annotations if isinstance(annotations, Mapping) else {}
    return "algorithm" in document or any(str(name).startswith(THEIR_PREFIX) for name in names)


def _is_cerebras(document: Mapping[str, Any]) -> bool:
    return "trainer" in document


def _is_mindcluster(document: Mapping[str, Any]) -> bool:
    version = str(document.get("apiVersion"))
    match document.get("kind"):
        case "AscendJob":
            return True
        case "Job":
            return version.startswith("batch.volcano.sh/")
        case "Deployment":
            return bool(MINDCLUSTER_LABELS & {*_labels(document), *_labels(_template(document))})
        case _:
            return False


def _template(document: Mapping[str, Any]) -> object:
    spec = document.get("spec")
    return spec.get("template") if isinstance(spec, Mapping) else None


def _labels(thing: object) -> Mapping[str, Any]:
    metadata = thing.get("metadata") if isinstance(thing, Mapping) else None
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}


DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        name="native",
        title="native",
        shape="apiVersion: everstep/v1",
        recognises=_is_native,
        compiles=compile_native,
        overlay="spec",
    ),
    Dialect(
        name="modelarts",
        title="ModelArts",
        shape="kind: job",
        recognises=_is_modelarts,
        compiles=modelarts.compile_modelarts,
        command=modelarts.COMMAND,
        fragment=modelarts.fragment,
    ),
    Dialect(
        name="cerebras",
        title="Cerebras",
        shape="trainer:",
        recognises=_is_cerebras,
    ),
    Dialect(
        name="mindcluster",
        title="MindCluster",
        shape="AscendJob, Volcano Job or labelled Deployment",
        recognises=_is_mindcluster,
    ),
)
"""First match wins, so a native document stays native whatever else it holds."""


def dialect_of(document: Mapping[str, Any]) -> Dialect:
    """The dialect this document is written in, by its shape alone."""
    for dialect in DIALECTS:
        if dialect.recognises(document):
            return dialect
    if _looks_like_modelarts(document):
        raise refusal([("kind", NO_KIND_OF_MODELARTS)])
    raise refusal([("document", "is no job document: begin with apiVersion: everstep/v1")])


def compiled(document: dict[str, Any], dialect: Dialect) -> JobSpec:
    """The job this document asks for, read as that dialect."""
    if dialect.compiles is None:
        what = f"{dialect.title} documents are not read yet; write a native one, everstep/v1"
        raise refusal([("document", f"is recognised by `{dialect.shape}`, but {what}")])
    return dialect.compiles(document)
