"""The dialect of Cerebras: how its documents are recognised and compiled.

What compiles them is imported with the first such document: most processes never see one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.core.spec import JobSpec
from everstep.dialects.cerebras import COMMAND
from everstep.dialects.dialect import Dialect, HasPods


def _is_cerebras(document: Mapping[str, Any]) -> bool:
    return "trainer" in document


def _compile(document: dict[str, Any], has_pods: HasPods) -> JobSpec:
    from everstep.dialects.cerebras.document import compile_cerebras

    return compile_cerebras(document, has_pods)


def _fragment(document: dict[str, Any]) -> dict[str, Any]:
    from everstep.dialects.cerebras.document import fragment

    return fragment(document)


def _with_named_phases(document: dict[str, Any]) -> dict[str, Any]:
    from everstep.dialects.cerebras.document import with_named_phases

    return with_named_phases(document)


CEREBRAS = Dialect(
    name="cerebras",
    title="Cerebras",
    recognises=_is_cerebras,
    compiles=_compile,
    command=COMMAND,
    as_pyyaml="trainer",
    with_whole_overlay=_with_named_phases,
    fragment=_fragment,
)
