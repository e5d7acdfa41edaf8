"""What a wrong document is answered with: one line, soon, that names the field and helps.

Each file in wrong/ is one document with one mistake. A YAML file begins with the field and a piece of
the message; what cannot hold a comment stands in EXPECTED.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from everstep.core.errors import InvalidSpec
from everstep.dialects.registry import compile_document, validate
from everstep.documents.text import read_text

WRONG = sorted(Path(__file__).with_name("wrong").iterdir())
SECONDS = 20.0
EXPECTED = {
    "blank.txt": ("document", "is empty"),
    "cut_off.json": ("line 1", "neither YAML nor JSON"),
    "empty.txt": ("document", "is empty"),
    "half_a_character.json": ("metadata.name", "half of a character"),
    "infinity.json": ("spec.limits.run_s", "infinite"),
    "key_twice.json": ("document", 'key "kind" more than once'),
    "latin1.txt": ("document", "save it as UTF-8"),
    "list.json": ("document", "must be a mapping"),
    "nan.json": ("spec.limits.run_s", "not a number"),
    "number.json": ("document", "must be a mapping"),
    "text.txt": ("document", "must be a mapping"),
    "two_documents.json": ("line 2", "something follows"),
}


def expected(file: Path) -> tuple[str, str]:
    if file.name in EXPECTED:
        return EXPECTED[file.name]
    first = file.read_text().partition("\n")[0]
    field, fragment = first.removeprefix("# expect: ").split(" | ", 1)
    return field, fragment


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.name)
def test_wrong_document_gets_one_line_that_names_its_field(file: Path) -> None:
    field, fragment = expected(file)
    began = time.process_time()
    with pytest.raises(InvalidSpec) as caught:
        compile_document(read_text(file.read_bytes()))
    assert time.process_time() - began < SECONDS
    ((named_field, message),) = caught.value.problems
    assert named_field == field
    assert fragment in message
    assert str(caught.value) == f"{field}: {message}"
    assert str(caught.value).isprintable()


def test_there_are_enough_of_them() -> None:
    assert len(WRONG) > 150


def test_all_problems_are_said_at_once() -> None:
    verdict = validate(
        """
        apiVersion: everstep/v2
        kind: TrainingJob
        metadata: {}
        spec:
          nodes: {min: 3, wanted: 2}
          limits: {grace: 1, start_s: 0}
          recovery: {ladders: {crash: [jobb]}}
          phases: [{name: a}, {name: a}]
        """
    )
    assert [field for field, _ in verdict.errors] == [
        "apiVersion",
        "metadata.name",
        "spec.nodes.min",
        "spec.limits.start_s",
        "spec.limits.grace",
        "spec.recovery.ladders.crash.0",
        "spec.phases.1.name",
    ]


def test_every_wrong_annotation_and_variable_is_said_at_once() -> None:
    annotations = "metadata.annotations.fault-tolerance/"
    wrong: dict[str, dict[str, object]] = {
        "not texts": {"job-retry-num": 8, "hang-retry": True, "pod-retry-num": []},
        "out of range": {"job-retry-num": "0", "hang-retry": "yes"},
    }
    for values in wrong.values():
        keyed = {f"fault-tolerance/{name}": value for name, value in values.items()}
        with pytest.raises(InvalidSpec) as caught:
            compile_document({"kind": "job", "metadata": {"annotations": keyed}})
        assert [field for field, _ in caught.value.problems] == [annotations + n for n in values]
    with pytest.raises(InvalidSpec) as caught:
        compile_document({"kind": "job", "algorithm": {"environments": {"A$": "", "1": ""}}})
    assert [field for field, _ in caught.value.problems] == [
        "algorithm.environments.A$",
        "algorithm.environments.1",
    ]


def test_many_problems_are_counted_not_listed() -> None:
    with pytest.raises(InvalidSpec) as caught:
        compile_document({"kind": "TrainingJob", **{f"key{i}": i for i in range(1000)}})
    assert len(caught.value.problems) < 40
    assert caught.value.problems[-1][1].startswith("and 9")


def test_long_names_are_cut() -> None:
    with pytest.raises(InvalidSpec) as caught:
        compile_document({"kind": "TrainingJob", "x\n" * 5000: 1})
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


def test_problems_of_several_phases_name_each() -> None:
    phases = [{"name": "a", "accelerators_per_node": 1}, {"name": "b", "accelerators_per_node": 1}]
    with pytest.raises(InvalidSpec) as caught:
        compile_document(
            {
                "apiVersion": "everstep/v1",
                "kind": "TrainingJob",
                "metadata": {"name": "demo"},
                "spec": {"phases": phases},
            }
        )
    assert [field for field, _ in caught.value.problems] == [
        "spec.command",
        "spec.phases.0.accelerators_per_node",
        "spec.command",
        "spec.phases.1.accelerators_per_node",
    ]
