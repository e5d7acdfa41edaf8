"""How a native document is recognised, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.dialects.dialect import Dialect
from everstep.dialects.native.document import compile_native


def _is_native(document: Mapping[str, Any]) -> bool:
    version = document.get("apiVersion")
    is_native_version = isinstance(version, str) and version.startswith("everstep")
    return is_native_version or document.get("kind") == "TrainingJob"


NATIVE = Dialect(
    name="native",
    title="native",
    recognises=_is_native,
    compiles=compile_native,
    overlay="spec",
)
