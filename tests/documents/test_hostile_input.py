"""Whatever comes in, the answer is `InvalidSpec`, in one line, in a moment: no hang, no overflow."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.errors import InvalidSpec
from everstep.dialects import registry
from everstep.dialects.registry import compile_document, patch
from everstep.documents.text import read_text

SECONDS = 20.0
SIZE = 900_000
START = '{"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "a"}, "spec": {'
FULL = read_text(Path(__file__).with_name("full.yaml").read_bytes())


def bomb() -> str:
    """Nine lists of lists of lists: a billion laughs."""
    lines = ["a0: &a0 [lol, lol]", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]" for i in range(1, 10))]
    return "\n".join(lines)


def many(entry: str, count: int) -> str:
    return ",".join(entry.replace("#", str(i)) for i in range(count))


TEXTS = {
    "brackets without end": "[" * SIZE,
    "brackets with an end": "[" * (SIZE // 2) + "]" * (SIZE // 2),
    "ten thousand brackets": "[" * 10_000 + "]" * 10_000,
    "ten thousand braces": "{" * 10_000,
    "objects in objects": '{"a":' * (SIZE // 5),
    "objects in objects with an end": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "flow below a key": "spec: " + "[" * SIZE,
    "flow mappings": "{a: " * (SIZE // 4),
    "dashes": "- " * (SIZE // 2),
    "question marks": "? " * (SIZE // 2),
    "block indentation": "\n".join(" " * i + "a:" for i in range(1300)),
    "dashes by indentation": "\n".join(" " * i + "-" for i in range(1300)),
    "laughs": bomb(),
    "alias of itself": "a: &a [*a]",
    "merge of itself": "a: &a {<<: *a}",
    "long list": "[" + "1," * (SIZE // 2) + "1]",
    "long list of lists": "[" + "[]," * (SIZE // 3) + "1]",
    "many unknown keys": START + many('"A#": 1', 19_000) + "}}",
    "many wrong variables": START + '"env": {' + many('"A#": 1', 19_000) + "}}}",
    "many values": START + '"env": {' + many('"A#": "1"', 50_000) + "}}}",
    "many phases": START + '"phases": [' + many('{"name": "p#"}', 5000) + "]}}",
    "phases that inherit a lot": START
    + '"command": "x", "env": {"A": "'
    + "x" * 90_000
    + '"}, "phases": ['
    + many('{"name": "p#"}', 99)
    + "]}}",
    "keys twice": "{" + many('"a#": 1', 60_000) + ', "a59999": 1}',
    "escapes without end": '["' + '\\"' * (SIZE // 2),
    "backslashes": "{" + "\\" * SIZE,
    "quotes": '["' * (SIZE // 2),
    "colons": "a:" * (SIZE // 2),
    "long key": "a" * SIZE + ": 1",
    "digits": "a: " + "9" * SIZE,
    "digits as a key": "9" * 900 + ": 1",
    "almost a number": "a: -" + "1" * SIZE + "x",
    "hexadecimal": "a: 0x" + "f" * SIZE,
    "documents": "---\n" * (SIZE // 4),
    "anchors": "&a " * (SIZE // 3),
    "tags": "!" * SIZE,
    "blank lines": "\n" * SIZE + "a",
    "zero characters": "\0" * SIZE,
    "half a character": "\ud800",
    "more than a megabyte": "# " + "x" * 1_100_000,
    "python object": "!!python/object/apply:os.system [ls]",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_text_gets_one_line_soon(text: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidSpec) as caught:
        compile_document(read_text(text))
    assert time.process_time() - began < SECONDS
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 20_000


MEGABYTE = "x" * 800_000
FREELY_WRITTEN = {
    "laughs": bomb(),
    "alias of itself": "a: &a [*a]",
    "merge of itself": "a: &a {<<: *a}",
    "alias of nothing": "a: *b",
    "merge of a text": "a: {<<: b}",
    "merge of a list of texts": "a: {<<: [b]}",
    "merge twice": "a: &a {b: 1}\nc: {<<: *a, <<: *a}",
    "many merges": "a: &a {" + many("a#: 1", 15_000) + "}\nb: [" + many("{<<: *a}", 70_000) + "]",
    "merges of merges": "\n".join(
        ["a0: &a0 {b: 1}", *(f"a{i}: &a{i} {{<<: *a{i - 1}, c{i}: 1}}" for i in range(1, 20_000))]
    ),
    "aliases of a long text": f"a: &a {MEGABYTE}\nb: [{'*a, ' * 19_000}]",
    "aliases of a long key": f"a: &a {{{MEGABYTE}: 1}}\nb: [{'*a, ' * 9_000}]",
    "aliases of a long list": f"a: &a [{'1, ' * 19_000}]\nb: [{'*a, ' * 19_000}]",
    "a list as a key": "a: &a [1]\n*a : 1",
    "anchors": "&a " * (SIZE // 3),
    "tags": "a: !!python/object/apply:os.system [ls]",
    "digits": "a: " + "9" * SIZE,
    "infinity": "a: .inf",
    "keys that are no text": "yes: 1",
}


@pytest.mark.parametrize("text", FREELY_WRITTEN.values(), ids=FREELY_WRITTEN)
def test_where_aliases_are_read_hostile_text_gets_one_line_soon_too(text: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidSpec) as caught:
        registry.read_text(f"trainer: {{init: {{}}}}\n{text}")
    assert time.process_time() - began < SECONDS
    assert str(caught.value).isprintable()


def deep(depth: int, *, lists: bool) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


def circle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["spec"] = value
    return value


class NotJson:
    pass


# Made by their test alone: each process collects every file.
VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "no arguments": list,
    "two arguments": lambda: [FULL, FULL],
    "text": lambda: json.dumps(FULL),
    "deep mapping": lambda: deep(100_000, lists=False),
    "deep list below a key": lambda: {"spec": deep(100_000, lists=True)},
    "deep template": lambda: {**FULL, "spec": {"pod_template": deep(33, lists=False)}},
    "circle": circle,
    "keys of other types": lambda: {1: 2, None: 3, (1, 2): 4, 10**5000: 5},
    "nan": lambda: {**FULL, "priority": math.nan},
    "large integer": lambda: {**FULL, "priority": 10**5000},
    "bytes": lambda: {**FULL, "kind": b"TrainingJob"},
    "tuple": lambda: {**FULL, "spec": ("a",)},
    "object": lambda: {**FULL, "spec": NotJson()},
    "wide": lambda: {str(i): [] for i in range(100_000)},
    "zero character": lambda: {**FULL, "spec": {"command": ["a\0b"]}},
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_hostile_value_gets_one_line_soon(make: Callable[[], Any]) -> None:
    value = make()
    began = time.process_time()
    with pytest.raises(InvalidSpec) as caught:
        compile_document(value)
    assert time.process_time() - began < SECONDS
    assert str(caught.value).isprintable()


def answer(call: Callable[[], object]) -> str:
    """The output about it: nothing if it is a job, one line if it is refused. Nothing else."""
    try:
        call()
    except InvalidSpec as error:
        return str(error) or "\n"
    return ""


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["main", "job", "crash", "nvidia", "all", "auto", "fail", "(", "executed"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=100)
def test_no_value_raises_anything_else(value: Any) -> None:
    assert answer(lambda: compile_document(value)).isprintable()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document, with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@given(st.data())
@settings(max_examples=150)
def test_no_change_of_a_right_document_raises_anything_else(data: st.DataObject) -> None:
    changed = deepcopy(FULL)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(list(places(changed))))
        container[key] = data.draw(values)
    assert answer(lambda: compile_document(changed)).isprintable()


@given(values | st.dictionaries(st.sampled_from(sorted(FULL["spec"])), values, max_size=3))
@settings(max_examples=100)
def test_no_patch_raises_anything_else(fragment: Any) -> None:
    assert answer(lambda: compile_document(patch(FULL, fragment))).isprintable()


@given(
    st.text(max_size=300)
    | st.binary(max_size=300)
    | st.text("[]{}:-,&*!|>'\"%@` \n#ab1?", max_size=80)
)
@settings(max_examples=250)
def test_no_text_raises_anything_else(text: str | bytes) -> None:
    assert answer(lambda: compile_document(read_text(text))).isprintable()


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
sayable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
"""What JSON can say and a document may hold."""


@given(st.dictionaries(st.text("abc", min_size=1), sayable, min_size=1))
@settings(max_examples=50)
def test_every_json_text_is_read_as_json_reads_it(document: dict[str, Any]) -> None:
    assert read_text(json.dumps(document)) == document


@pytest.mark.long
@pytest.mark.timeout(1_800)
@given(st.data())
@settings(max_examples=10_000)
def test_ten_thousand_changes_of_right_documents_raise_nothing_else(data: st.DataObject) -> None:
    """Of the quick ones above each takes 100 or so, always alike from one seed."""
    changed = deepcopy(data.draw(st.sampled_from(RIGHT)))
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(list(places(changed))))
        container[key] = data.draw(values)
    assert answer(lambda: compile_document(changed)).isprintable()


EXAMPLES = Path(__file__).parents[2] / "examples"
RIGHT = (
    FULL,
    *(
        read_text((EXAMPLES / name).read_bytes())
        for name in ("first.json", "two_phases.yaml", "modelarts.json", "spares.yaml")
    ),
)
"""A document of each kind."""
