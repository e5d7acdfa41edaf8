"""The dialect of ModelArts: how its documents are recognised and compiled.

What compiles them is imported with the first such document: most processes never see one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from everstep.core.spec import JobSpec
from everstep.dialects import overlays
from everstep.dialects.dialect import Dialect, HasPods
from everstep.dialects.modelarts import COMMAND, KINDS

ANNOTATION_PREFIX = "fault-tolerance/"


def _is_modelarts(document: Mapping[str, Any]) -> bool:
    """By `kind`, whose values no other dialect has; it has a default, so `algorithm` counts as well."""
    kind = document.get("kind")
    if kind is None:
        return "apiVersion" not in document and {"metadata", "algorithm"} <= {*document}
    keys = {"metadata", "algorithm", "spec"} & {*document}
    return isinstance(kind, str) and kind in KINDS and bool(keys)


def _looks_like_modelarts(document: Mapping[str, Any]) -> bool:
    """Whether it is one but for a wrong or missing kind."""
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    names = annotations if isinstance(annotations, Mapping) else {}
    return "algorithm" in document or any(str(name).startswith(ANNOTATION_PREFIX) for name in names)


def _compile(document: dict[str, Any], has_pods: HasPods) -> JobSpec:
    from everstep.dialects.modelarts.document import compile_modelarts

    return compile_modelarts(document, has_pods)


def _fragment(document: dict[str, Any]) -> dict[str, Any]:
    from everstep.dialects.modelarts.document import fragment

    return fragment(document)


MODELARTS = Dialect(
    name="modelarts",
    title="ModelArts",
    recognises=_is_modelarts,
    looks_like=_looks_like_modelarts,
    right_kind="must be one that a ModelArts document has, for example kind: job",
    compiles=_compile,
    command=COMMAND,
    with_whole_overlay=partial(overlays.with_whole_block, fragment=_fragment),
    fragment=_fragment,
)
