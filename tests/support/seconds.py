"""How long slow tests took when they were last measured: tests/seconds.json, name to seconds.

`make test-long ARGS="-p tests.support.costs --update-seconds"` measures again what it runs. The numbers
decide about shares and order alone, so another machine's are as good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "seconds.json"
SLOW_S = 2.0
"""A faster test is not in the table."""


def read(table: Path = TABLE) -> dict[str, float]:
    seconds: dict[str, float] = json.loads(table.read_text())
    return seconds


def update(measured: Mapping[str, float], table: Path = TABLE) -> None:
    """Replace the numbers of these tests; those of tests that are gone are removed."""
    root = table.parents[1]
    seconds = {**read(table), **{test: round(s, 1) for test, s in measured.items()}}
    slow = {test: s for test, s in sorted(seconds.items()) if s >= SLOW_S and _exists(test, root)}
    table.write_text(json.dumps(slow, indent=0) + "\n")


def _exists(test: str, root: Path) -> bool:
    file, _, name = test.partition("::")
    function = name.partition("[")[0].rpartition("::")[2]
    return (root / file).exists() and f"def {function}(" in (root / file).read_text()
