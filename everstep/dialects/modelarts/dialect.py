"""How a document of ModelArts is recognised, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.dialects.dialect import Dialect
from everstep.dialects.modelarts import document as modelarts
from everstep.dialects.modelarts.shapes import COMMAND, KINDS

THEIR_PREFIX = "fault-tolerance/"


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


MODELARTS = Dialect(
    name="modelarts",
    title="ModelArts",
    shape="kind: job",
    recognises=_is_modelarts,
    looks_like=_looks_like_modelarts,
    right_kind="must be one that a ModelArts document has, for example kind: job",
    compiles=modelarts.compile_modelarts,
    command=COMMAND,
    fragment=modelarts.fragment,
)
