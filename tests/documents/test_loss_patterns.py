"""In which documents printed losses are read: bad numbers end a job of some systems."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.dialects.registry import compile_document
from tests.support.machine import EXAMPLES

NATIVE = json.loads((EXAMPLES / "first.json").read_text())
MODELARTS = json.loads((EXAMPLES / "modelarts.json").read_text())
PATTERN = r"loss (?P<loss>\S+)"


def pattern_of(document: dict[str, Any]) -> set[str | None]:
    return {phase.loss_pattern for phase in compile_document(document).phases}


def with_pattern(document: dict[str, Any], spec: str, pattern: str) -> dict[str, Any]:
    progress = {**document[spec].get("progress", {}), "loss_pattern": pattern}
    return {**document, spec: {**document[spec], "progress": progress}}


@pytest.mark.parametrize(
    ("document", "spec", "expected"),
    [(NATIVE, "spec", None), (MODELARTS, "everstep", "")],
    ids=["native", "modelarts"],
)
def test_the_usual_pattern_is_tried_in_native_documents_alone(
    document: dict[str, Any], spec: str, expected: str | None
) -> None:
    assert pattern_of(document) == {expected}
    assert pattern_of(with_pattern(document, spec, PATTERN)) == {PATTERN}
    assert pattern_of(with_pattern(document, spec, "none")) == {""}
