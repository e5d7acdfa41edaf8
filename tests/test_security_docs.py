"""docs/security.md claims only what a test shows: each claim names its tests, as in docs/old-processes.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
OLD_PROCESSES = (ROOT / "docs" / "old-processes.md").read_text()

TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def claims() -> list[str]:
    """The rows of every table that has a column of tests."""
    tables = PAGE.split("| | test |\n| --- | --- |\n")[1:]
    return [row for table in tables for row in table.split("\n\n")[0].splitlines()]


def test_every_boundary_that_holds_names_a_test() -> None:
    assert len(claims()) > 10
    bare = [row for row in claims() if not TEST.search(row.split(" | ")[-1])]
    assert not bare, "name the test, or say under `What does not hold` that it does not"


def test_every_threat_names_what_meets_it_and_its_test() -> None:
    section = PAGE.partition("## Threat model\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .*", section, re.MULTILINE)[2:]
    assert len(rows) > 10
    assert [row for row in rows if not TEST.search(row.split(" | ")[-1])] == []
    assert {row.count(" | ") for row in rows} == {3}


def test_every_means_against_old_processes_names_its_test() -> None:
    rows = re.findall(r"^\| .*", OLD_PROCESSES, re.MULTILINE)[2:]
    assert len(rows) > 5
    assert [row for row in rows if not TEST.search(row.split(" | ")[-1])] == []


@pytest.mark.parametrize("page", [PAGE, OLD_PROCESSES], ids=["security", "old processes"])
def test_every_test_that_is_named_is_there(page: str) -> None:
    test_names = TEST.findall(page)
    missing = [
        f"{file}::{name}"
        for file, name in test_names
        if not re.search(rf"^(async )?def {name}\(", _text(ROOT / file), re.MULTILINE)
    ]
    assert not missing, "a claim without a test: find what shows it now, or take the claim back"
    assert len(test_names) == page.count("tests/")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
