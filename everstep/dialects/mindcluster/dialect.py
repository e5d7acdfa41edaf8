"""How a document of MindCluster is recognised, and who reads it.

What compiles them is imported with the first such document: most processes never see one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from everstep.core.spec import JobSpec
from everstep.dialects import overlays
from everstep.dialects.dialect import Dialect, HasPods
from everstep.dialects.mindcluster import COMMAND, objects


def _is_mindcluster(document: Mapping[str, Any]) -> bool:
    return objects.is_job(document) or objects.is_list(document)


def _compile(document: dict[str, Any], has_pods: HasPods) -> JobSpec:
    from everstep.dialects.mindcluster.document import compile_mindcluster

    return compile_mindcluster(document, has_pods)


def _fragment(document: dict[str, Any]) -> dict[str, Any]:
    from everstep.dialects.mindcluster.document import fragment

    return fragment(document)


MINDCLUSTER = Dialect(
    name="mindcluster",
    title="MindCluster",
    recognises=_is_mindcluster,
    compiles=_compile,
    command=COMMAND,
    may_share=objects.may_share,
    with_whole_overlay=partial(overlays.with_whole_block, fragment=_fragment),
    fragment=_fragment,
)
