"""How a document of MindCluster is recognised; none is read yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.dialects.dialect import Dialect

MINDCLUSTER_LABELS = frozenset({"fault-scheduling", "ring-controller.atlas"})


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


MINDCLUSTER = Dialect(
    name="mindcluster",
    title="MindCluster",
    shape="AscendJob, Volcano Job or labelled Deployment",
    recognises=_is_mindcluster,
)
