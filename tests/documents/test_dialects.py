"""Which dialect a document is taken for, and what `validate` answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.dialects.registry import DIALECTS, dialect_of, validate

FULL = Path(__file__).with_name("full.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("native", {"apiVersion": "everstep/v1"}),
        ("native", {"kind": "TrainingJob"}),
        ("native", {"apiVersion": "everstep/v9", "kind": "job", "metadata": {}}),
        ("native", {"kind": "TrainingJob", "trainer": {}}),
        ("modelarts", {"kind": "job", "metadata": {"name": "a"}, "algorithm": {}}),
        ("modelarts", {"metadata": {"name": "a"}, "algorithm": {}}),
        ("modelarts", {"kind": None, "metadata": None, "algorithm": {}}),
        ("cerebras", {"trainer": {"init": {}}}),
        ("cerebras", {"trainer": [{"trainer": {}}]}),
        ("mindcluster", {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob"}),
        ("mindcluster", {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}),
        (
            "mindcluster",
            {"kind": "Deployment", "metadata": {"labels": {"fault-scheduling": "force"}}},
        ),
        (
            "mindcluster",
            {
                "kind": "Deployment",
                "spec": {"template": {"metadata": {"labels": {"ring-controller.atlas": "x"}}}},
            },
        ),
    ],
    ids=str,
)
def test_documents_are_recognised_by_shape(name: str, document: dict[str, Any]) -> None:
    assert dialect_of(document).name == name


def test_every_dialect_has_a_name_of_its_own() -> None:
    assert [dialect.name for dialect in DIALECTS] == [
        "native",
        "modelarts",
        "cerebras",
        "mindcluster",
    ]


def test_a_right_document_is_ok() -> None:
    assert validate(FULL).to_dict() == {
        "ok": True,
        "dialect": "native",
        "errors": [],
        "notes": [],
    }


def test_notes_do_not_make_a_document_wrong() -> None:
    verdict = validate(FULL.replace("  nodes: 4", "  image: torch\n  nodes: 4")).to_dict()
    assert verdict["ok"] is True
    assert [note["field"] for note in verdict["notes"]] == ["spec.image"]


def test_errors_name_field_and_message() -> None:
    assert validate(FULL.replace("nodes: 4", "nodes: four")).to_dict() == {
        "ok": False,
        "dialect": "native",
        "errors": [
            {
                "field": "spec.nodes",
                "message": 'must be a whole number or {min: 2, wanted: 4}, not the text "four"',
            }
        ],
        "notes": [],
    }


def test_what_cannot_be_read_has_no_dialect() -> None:
    assert validate("[").dialect is None
    assert validate("a: b").dialect is None
