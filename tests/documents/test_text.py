"""How text is read: YAML the way its version 1.2 means it, JSON as it is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from everstep.documents import text as reading
from everstep.documents.text import read_text

SCALARS = [
    ("1", 1),
    ("-7", -7),
    ("+7", 7),
    ("0", 0),
    ("0x1F", 31),
    ("0o17", 15),
    ("3e-4", 3e-4),
    ("1.5", 1.5),
    (".5", 0.5),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    # What older YAML makes numbers, dates and truths of stays what was written.
    ("on", "on"),
    ("no", "no"),
    ("y", "y"),
    ("1:30", "1:30"),
    ("010", "010"),
    ("1_000", "1_000"),
    ("2024-01-01", "2024-01-01"),
    ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
    ("0b11", "0b11"),
    ("=", "="),
    ("'1'", "1"),
    ('"true"', "true"),
    (r'"caf\u00e9"', "café"),
    ("|\n  1\n  2\n", "1\n2\n"),
    ("{a: 1}", {"a": 1}),
    ("[1, [2]]", [1, [2]]),
    ("{}", {}),
    ("[]", []),
]


@pytest.mark.parametrize(("written", "meant"), SCALARS, ids=[repr(w) for w, _ in SCALARS])
def test_yaml_means(written: str, meant: Any) -> None:
    value = read_text(f"a: {written}")["a"]
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize("key", ["on", "y", "2024-01-01", '"1"', "1:30", "<<"])
def test_text_keys_stay_text(key: str) -> None:
    assert read_text(f"{key}: 1") == {key.strip('"'): 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        (r'{"a": "\/"}', {"a": "/"}),
        ('{\t"a":\t1}', {"a": 1}),
        ('{"a":1}', {"a": 1}),
        ('\n{"a": {"b": [true, null, 1.0]}}\n', {"a": {"b": [True, None, 1.0]}}),
        ("{a: 1, b: [2,],}", {"a": 1, "b": [2]}),
        ("{a: '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[['}", {"a": "[" * 37}),
        ('{"a": "]]]]{{{{"}', {"a": "]]]]{{{{"}),
    ],
)
def test_json_and_flow_yaml_are_read(text: str, value: Any) -> None:
    assert read_text(text) == value


PYYAML = """
a: &a {b: 1, c: [x, &d 2.5]}
e: *a
f: {<<: *a, b: 3}
g: [*d, {<<: [{b: 4}, {b: 5, h: 6}], i: *d}]
"""
SCALARS_OF_PYYAML = (
    *(
        "1",
        "-7",
        "+1_000",
        "010",
        "0x1F",
        "0b11",
        "1:30",
        "3e-4",
        "3.0e-4",
        "1.5",
        ".5",
        "1.",
        "1_0.5",
    ),
    *("true", "No", "on", "OFF", "y", "null", "~", "", "'1'", '"no"', "yes please"),
)


@pytest.mark.parametrize("written", SCALARS_OF_PYYAML)
def test_what_another_program_reads_with_pyyaml_means_the_same(written: str) -> None:
    text = f"theirs: 1\na: {written}"
    value, meant = read_text(text, as_pyyaml=("theirs",))["a"], yaml.safe_load(text)["a"]
    assert value == meant
    assert type(value) is type(meant)


def test_aliases_and_merge_keys_mean_the_same_too() -> None:
    text = f"theirs: 1{PYYAML}"
    assert read_text(text, as_pyyaml=("theirs",)) == yaml.safe_load(text)


def test_a_date_that_another_program_reads_stays_text() -> None:
    assert read_text("theirs: 2024-01-01", as_pyyaml=("theirs",)) == {"theirs": "2024-01-01"}


@pytest.mark.parametrize(
    "text",
    [
        "theirs: yes",
        "# theirs\n---\n'theirs' : yes",
        "\n \n theirs: yes\n b: 1",
        "b: 1\ntheirs: yes",
    ],
)
def test_a_key_at_the_top_tells_that_another_program_reads_it(text: str) -> None:
    assert read_text(text, as_pyyaml=("theirs",))["theirs"] is True


@pytest.mark.parametrize("text", ["b: {theirs: yes}", "b:\n  theirs: yes\n", "# theirs: 1\nb: yes"])
def test_a_key_further_down_tells_nothing(text: str) -> None:
    assert "yes" in str(read_text(text, as_pyyaml=("theirs",)))


def test_a_comment_and_one_document_mark_are_fine() -> None:
    assert read_text("# mine\n---\na: 1\n...\n") == {"a": 1}


def test_a_full_depth_is_allowed() -> None:
    deep = "{a: " * 32 + "1" + "}" * 32
    assert read_text(deep)
    assert read_text(deep.replace("a", '"a"'))


def test_the_slow_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: {b: [1, 'x', on]}\nc: |\n  text\n"
    fast = read_text(text)
    monkeypatch.setattr(reading, "PARSER", yaml.SafeLoader)
    assert read_text(text) == fast
