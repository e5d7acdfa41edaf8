"""The domain's words: each on the page once, with one meaning, and defined once in the code."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "words.md"
ROW = re.compile(r"^\| ([a-z ]+) \| .+ \| \[(\w+)\]\(\.\./(\S+)\) \|$", re.MULTILINE)
WORDS = {word: (name, where) for word, name, where in ROW.findall(PAGE.read_text())}
WRITTEN = "everstep/dialects/native/shapes.py"
"""How a document writes them, under the names that it has for them."""


def names(path: Path) -> Iterator[str]:
    """What a module defines for others: its classes, functions, types and tables."""
    for node in parsed(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_every_row_of_the_page_is_read() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    heads = [line for line in lines if line.startswith(("| word |", "| --- |"))]
    assert len(WORDS) == len(lines) - len(heads)


def test_every_word_is_defined_where_the_page_says() -> None:
    wrong = {
        word: where for word, (name, where) in WORDS.items() if name not in names(ROOT / where)
    }
    assert wrong == {}


def test_no_type_that_stands_for_a_word_is_defined_twice() -> None:
    types = {name: where for name, where in WORDS.values() if name[0].isupper()}
    places = collections.defaultdict(set)
    for top in ("everstep", "workflows", "activities"):
        for path in (ROOT / top).rglob("*.py"):
            for name in names(path):
                places[name].add(path.relative_to(ROOT).as_posix())
    twice = {name: places[name] - {where, WRITTEN} for name, where in types.items()}
    assert {name: where for name, where in twice.items() if where} == {}
