"""Rules about codes over time: how often, how long, together with which others. Four files of rows."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from everstep.core.levels import FaultClass
from everstep.core.spec import DurationRule, JobDurationRule, RelationRule, RepeatRule
from everstep.faults.severities import LEVELS

# -- How often ------------------------------------------------------------------------------------

OTHER_CODES = RepeatRule(times=3, window_s=86_400.0)
"""Codes that no row names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyRule:
    """How often a code may occur within a window, and how long a device must be quiet to be released."""

    code: str
    times: int
    window_s: float
    release_s: float | None = None  # None: only an operator releases it


@cache
def frequency_rules() -> Mapping[str, FrequencyRule]:
    """Every row of frequency.csv, by its code."""
    return {row["code"]: _frequency_rule(row) for row in _rows("frequency")}


def _frequency_rule(row: Mapping[str, str]) -> FrequencyRule:
    return FrequencyRule(
        code=row["code"],
        times=int(row["times"]),
        window_s=float(row["window_s"]),
        release_s=float(row["release_s"]) if row["release_s"] else None,
    )


@cache
def repeat_rules() -> tuple[RepeatRule, ...]:
    """The rows as rules of a policy. Codes with the same numbers share one; the last holds for all others."""
    return (*_shared_rules(), OTHER_CODES)


def _shared_rules() -> Iterator[RepeatRule]:
    codes: dict[tuple[int, float, float | None], list[str]] = {}
    for rule in frequency_rules().values():
        codes.setdefault((rule.times, rule.window_s, rule.release_s), []).append(rule.code)
    for (times, window_s, release_s), names in codes.items():
        yield RepeatRule(times, window_s, tuple(names), release_s)


# -- How long, and together with which -------------------------------------------------------------


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


@cache
def job_duration_rules() -> tuple[JobDurationRule, ...]:
    """Every row of job_duration.csv."""
    return tuple(
        JobDurationRule(row["code"], float(row["longer_than_s"]), row["level"])
        for row in _rows("job_duration")
    )


def _class(level: str) -> FaultClass:
    return FaultClass.SUBHEALTH if LEVELS[level].is_sub_healthy else FaultClass.DEVICE_FATAL


def _rows(name: str) -> Iterator[Mapping[str, str]]:
    text = resources.files("everstep.faults").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
