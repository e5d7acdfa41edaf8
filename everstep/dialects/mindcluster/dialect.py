"""How a document of MindCluster is recognised, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.dialects.dialect import Dialect
from everstep.dialects.mindcluster import objects
from everstep.dialects.mindcluster.document import COMMAND, compile_mindcluster, fragment


def _is_mindcluster(document: Mapping[str, Any]) -> bool:
    return objects.is_job(document) or objects.is_list(document)


MINDCLUSTER = Dialect(
    name="mindcluster",
    title="MindCluster",
    shape="AscendJob, Volcano Job or labelled Deployment",
    recognises=_is_mindcluster,
    compiles=compile_mindcluster,
    command=COMMAND,
    may_share=objects.may_share,
    fragment=fragment,
)
