"""Pages of docs/operations: the index has each, all settings of a worker are there. And the changelog."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from everstep.backends import BACKENDS, settings_class
from everstep.worker_settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "operations.md"
FOLDER = ROOT / "docs" / "operations"


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(operations/([\w-]+\.md)", INDEX.read_text()))
    assert linked == {page.name for page in FOLDER.iterdir()}


def test_each_decision_has_a_number_of_its_own() -> None:
    names = sorted(page.name for page in (ROOT / "docs" / "decisions").iterdir())
    heads = [(ROOT / "docs" / "decisions" / name).read_text().split(".")[0] for name in names]
    assert heads == [f"# {int(name[:4])}" for name in names]
    assert len({name[:4] for name in names}) == len(names)


def test_no_item_of_a_list_is_a_paragraph() -> None:
    """Two lines say what to do, or what happens; four are the most where a list of names belongs to it."""
    long = [
        f"{page.name}: {item.splitlines()[0]}"
        for page in FOLDER.iterdir()
        for item in re.findall(r"^ *- .*(?:\n +[^- \n].*)*", page.read_text(), re.MULTILINE)
        if item.count("\n") > 3
    ]
    assert not long, "one topic an item: split it, or give it a heading"


def test_every_row_of_a_table_is_one_line_of_words() -> None:
    """A row that goes on in the next line ends its table there. A function without a name says nothing."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.name}: {row}"
        for page in pages
        for row in re.findall(r"^\|.*", page.read_text(), re.MULTILINE)
        if not row.endswith("|") or "<lambda>" in row
    ]
    assert broken == []


MEASURED = re.compile(
    r"\b(about|some|around|roughly|nearly) [\d.,]+ ?(ms|s|us|MB)\b"  # a limit is exact
    r"|\d ?(ms|s|seconds|minutes) of a processor"
    r"|\b(micro|milli)second\b"
    r"|\btimes (as (fast|quick)|faster|quicker)\b",
    re.IGNORECASE,
)
"""The words of a page for what something was found to take."""


def test_every_figure_of_speed_names_the_command_that_prints_it() -> None:
    """The paragraph, or the row, does. A sentence that says it otherwise than `MEASURED` is not noticed."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *FOLDER.glob("*.md")]
    unnamed = [
        f"{page.name}: {figure[0]}"
        for page in pages
        if page.name != "benchmarks.md"  # one command has printed all of it
        for paragraph in re.split(r"\n\n|\n(?=\||- )", page.read_text())
        if (figure := MEASURED.search(paragraph)) and "python -m benchmarks." not in paragraph
    ]
    assert unnamed == [], "name it, as `python -m benchmarks.snapshots`"


def test_every_command_of_a_benchmark_is_there() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "benchmarks" / "README.md"]
    commands = {
        name
        for page in pages
        for name in re.findall(r"python -m benchmarks\.(\w+)", page.read_text())
    }
    assert commands - {path.stem for path in (ROOT / "benchmarks").iterdir()} == set()


def test_every_setting_of_a_worker_is_on_a_page() -> None:
    text = "".join(
        page.read_text()
        for page in (FOLDER / "server-and-workers.md", ROOT / "docs" / "observability.md")
    )
    missing = [
        name
        for name in (
            *WorkerSettings.model_fields,
            *(field for name in BACKENDS for field in settings_class(name).model_fields),
        )
        if not re.search(rf"`EVERSTEP_{name.upper()}(__\w+)?`", text)
    ]
    assert missing == []


def test_each_entry_of_the_changelog_is_whole_and_there_once() -> None:
    """A merge that joins two lists may cut an entry off, or leave it in both wordings."""
    text = (ROOT / "CHANGELOG.md").read_text()
    entries = re.findall(r"^- .*(?:\n  \S.*)*", text, re.MULTILINE)
    assert [entry for entry in entries if not entry.endswith(".")] == []
    beginnings = Counter(entry[:80] for entry in entries)
    assert [beginning for beginning, count in beginnings.items() if count > 1] == []
