"""docs/observability.md has every metric of ours, with its labels, and every level at which a module logs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.telemetry.instruments import OWN, Instrument

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "observability.md"
LEVELS = {"exception": "error"} | {name: name for name in ("debug", "info", "warning", "error")}
OF_THE_SDK = {"activity.logger": "temporalio.activity", "workflow.logger": "temporalio.workflow"}


@pytest.mark.parametrize("instrument", OWN, ids=lambda instrument: instrument.name)
def test_the_page_has_each_metric(instrument: Instrument) -> None:
    (row,) = [
        line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{instrument.name}` ")
    ]
    assert all(f"`{label}`" in row for label in instrument.labels)
    unit = row.split(" | ")[2]
    assert instrument.unit in (unit, f"{{{unit.removesuffix('s')}}}")
    assert instrument.name.replace(".", "_") in row


def logging_calls() -> Iterator[tuple[str, str]]:
    """Level and logger of each call in the code of a worker; its own name is that of its module."""
    for package in ("activities", "everstep", "workflows"):
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    logger = ast.unparse(node.func.value)
                    if node.func.attr in LEVELS and re.search(r"(^|\.)(LOG|logger)$", logger):
                        yield LEVELS[node.func.attr], OF_THE_SDK.get(logger, module)


def calls_of_backends() -> Iterator[tuple[str, str, str]]:
    """Level and logger of each call of a backend, and whether it says of which job it logs."""
    for path in (ROOT / "everstep" / "backends").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(ast.Name("LOG" | "logger"), level)) if level in LEVELS:
                    extra = "".join(ast.unparse(k.value) for k in node.keywords if k.arg == "extra")
                    yield LEVELS[level], module, "yes" if "'job'" in extra else "no"


def test_the_page_says_which_lines_of_backends_name_a_job() -> None:
    rows = re.findall(
        r"^\| `(\w+)`[^|]* \| `(everstep\.backends[\w.]*)` \| (\w+)", PAGE.read_text(), re.MULTILINE
    )
    used = set()
    for level, module, has_job in calls_of_backends():
        such = [
            row
            for row in rows
            if (row[0], row[2]) == (level, has_job) and f"{module}.".startswith(f"{row[1]}.")
        ]
        assert such, f"{module} logs at {level}, with a job: {has_job}"
        used |= set(such)
    assert set(rows) == used


def test_the_page_has_each_logger_at_each_of_its_levels() -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]* \| `([\w.]+)` \| ", PAGE.read_text(), re.MULTILINE)
    calls = set(logging_calls())
    matches = {
        call: [row for row in rows if row[0] == call[0] and f"{call[1]}.".startswith(f"{row[1]}.")]
        for call in calls
    }
    assert calls
    assert [call for call, of_call in matches.items() if not of_call] == []
    used = {row for of_call in matches.values() for row in of_call}
    assert {row for row in rows if row not in used} == {
        ("error", "temporalio.core"),
        ("warning", "temporalio.core"),
        ("error", "temporalio.worker"),
        ("warning", "temporalio.worker"),
    }, "rows of which no module logs anything"
