"""The dialect of Cerebras: how its documents are recognised and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.dialects.cerebras.document import (
    COMMAND,
    compile_cerebras,
    fragment,
    with_named_phases,
)
from everstep.dialects.dialect import Dialect


def _is_cerebras(document: Mapping[str, Any]) -> bool:
    return "trainer" in document


CEREBRAS = Dialect(
    name="cerebras",
    title="Cerebras",
    shape="trainer:",
    recognises=_is_cerebras,
    compiles=compile_cerebras,
    command=COMMAND,
    as_pyyaml="trainer",
    name_phases=with_named_phases,
    fragment=fragment,
)
