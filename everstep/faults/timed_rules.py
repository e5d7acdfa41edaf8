"""Rules about how long a device shows a code and which codes it shows together: two files of rows."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

from everstep.core.levels import FaultClass
from everstep.core.spec import DurationRule, RelationRule
from everstep.faults.levels import LEVELS


@cache
def duration_rules() -> tuple[DurationRule, ...]:
    """Every row of duration.csv."""
    return tuple(
        DurationRule(
            row["code"], float(row["longer_than_s"]), float(row["sound_for_s"]), row["level"]
        )
        for row in _rows("duration")
    )


@cache
def relation_rules() -> tuple[RelationRule, ...]:
    """Every row of relation.csv."""
    return tuple(
        RelationRule(
            row["trigger"], row["cause"], float(row["window_s"]), row["level"], _class(row["level"])
        )
        for row in _rows("relation")
    )


def _class(level: str) -> FaultClass:
    return FaultClass.SUBHEALTH if LEVELS[level].is_sub_healthy else FaultClass.DEVICE_FATAL


def _rows(name: str) -> Iterator[Mapping[str, str]]:
    text = resources.files("everstep.faults").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
