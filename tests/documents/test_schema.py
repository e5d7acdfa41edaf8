"""The schema, its page and the document to begin with say what the documents themselves are held to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.dialects import registry
from everstep.dialects.native.schema import schema
from everstep.dialects.native.template import TEMPLATE
from everstep.dialects.registry import compile_document, dialect_of
from everstep.documents.text import read_text

HERE = Path(__file__).parent
SCHEMA = schema()

EXAMPLES = [
    file
    for file in (HERE.parents[1] / "examples").rglob("*.yaml")
    if dialect_of(registry.read_text(file.read_text())).name == "native"
]

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "type": lambda value, kind: KINDS[kind](value),
    "const": lambda value, only: bool(value == only),
    "enum": lambda value, words: value in words,
    "minimum": lambda value, least: bool(value >= least),
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}


def problems(value: Any, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What an editor would underline: the part of JSON Schema that ours is made of."""
    if "$ref" in schema:
        yield from problems(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    for key in {"anyOf", "oneOf"} & {*schema}:
        fits = [not list(problems(value, each, at)) for each in schema[key]]
        if not any(fits) or (key == "oneOf" and sum(fits) > 1):
            yield f"{at}: fits {sum(fits)}"
    failing = (word for word in HOLDS if word in schema and not HOLDS[word](value, schema[word]))
    if wrong := next(failing, ""):
        yield f"{at}: {wrong}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{at}.{number}")
    elif isinstance(value, dict):
        yield from _problems_of_keys(value, schema, at)


def _problems_of_keys(value: dict[str, Any], schema: Mapping[str, Any], at: str) -> Iterator[str]:
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties", {})
    yield from (f"{at}.{key}: missing" for key in schema.get("required", ()) if key not in value)
    for key, item in value.items():
        if key in properties:
            yield from problems(item, properties[key], f"{at}.{key}")
        elif additional is False:
            yield f"{at}.{key}: unknown"
        elif isinstance(additional, Mapping):
            yield from problems(item, additional, f"{at}.{key}")


@pytest.mark.parametrize(
    "file",
    [HERE / "full.yaml", *EXAMPLES],
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_documents_that_are_accepted_fit_the_schema(file: Path) -> None:
    assert list(problems(read_text(file.read_text()), SCHEMA)) == []


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"comand": "x"}, ".spec.comand: unknown"),
        ({"nodes": "4"}, ".spec.nodes: fits 0"),
        ({"limits": {"grace_s": -1}}, ".spec.limits.grace_s: minimum"),
        (
            {"recovery": {"ladders": {"crash": ["retry"]}}},
            ".spec.recovery.ladders.crash.0: enum",
        ),
        ({"phases": [{}]}, ".spec.phases: fits 0"),
        ({"cluster": "A B"}, ".spec.cluster: pattern"),
    ],
)
def test_wrong_documents_do_not(spec: dict[str, Any], problem: str) -> None:
    body = {**read_text((HERE / "full.yaml").read_text()), "spec": spec}
    (only_problem,) = problems(body, SCHEMA)
    assert only_problem.startswith(problem)


def test_every_key_says_what_it_is_for() -> None:
    shapes = {"document": SCHEMA, **SCHEMA["$defs"]}
    silent = [
        f"{name}.{key}"
        for name, shape in shapes.items()
        for key, field_schema in shape.get("properties", {}).items()
        if not field_schema.get("description")
    ]
    assert silent == [], "a docstring below the key"


# -- init -----------------------------------------------------------------------------------------


def test_what_it_has_as_comments_is_true_too() -> None:
    text = re.sub(r"^( *)# (?= *(- |\w+: ?[^ ]?))", r"\1", TEMPLATE, flags=re.MULTILINE)
    spec = compile_document(read_text(text))
    keys = set(re.findall(r"^  (?:# )?(\w+):", TEMPLATE, re.MULTILINE))
    assert keys >= {"name", "command", "checkpoints", "progress", "recovery", "phases", "limits"}
    assert [phase.name for phase in spec.phases] == ["warmup", "main"]
    (main,) = spec.phases[1:]
    assert (main.checkpoints_path, main.prewarm, main.nodes) == ("out/ckpt", ("torch",), 2)
    assert main.policy.rules[0].why == "bad configuration"
    assert spec.labels == {"team": "nlp"}
