"""docs/observability.md has every metric of ours, with its labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.telemetry.instruments import OWN, Instrument

PAGE = Path(__file__).resolve().parents[2] / "docs" / "observability.md"


@pytest.mark.parametrize("instrument", OWN, ids=lambda instrument: instrument.name)
def test_the_page_has_each_metric(instrument: Instrument) -> None:
    (row,) = [
        line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{instrument.name}` ")
    ]
    assert all(f"`{label}`" in row for label in instrument.labels)
    unit = row.split(" | ")[2]
    assert instrument.unit in (unit, f"{{{unit.removesuffix('s')}}}")
    assert instrument.name.replace(".", "_") in row
