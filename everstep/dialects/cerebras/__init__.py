"""Documents of Cerebras: recognised, and not read yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.dialects.dialect import Dialect


def _is_cerebras(document: Mapping[str, Any]) -> bool:
    return "trainer" in document


DIALECT = Dialect(
    name="cerebras",
    title="Cerebras",
    shape="trainer:",
    recognises=_is_cerebras,
)
