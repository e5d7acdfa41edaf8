"""How often one device may show a code until it is left: a file of rows, and a rule for other codes."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from everstep.core.spec import RepeatRule

OTHERS = RepeatRule(times=3, window_s=86_400.0)
"""Codes that no row names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyRule:
    """One code: so many times within the window; a device is released once it is quiet for `release_s`."""

    code: str
    times: int
    window_s: float
    release_s: float | None = None  # None: only an operator releases it


@cache
def frequency_rules() -> Mapping[str, FrequencyRule]:
    """Every row, by its code."""
    text = resources.files("everstep.faults").joinpath("frequency.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["code"]: _rule(row) for row in rows}


def _rule(row: Mapping[str, str]) -> FrequencyRule:
    return FrequencyRule(
        code=row["code"],
        times=int(row["times"]),
        window_s=float(row["window_s"]),
        release_s=float(row["release_s"]) if row["release_s"] else None,
    )


@cache
def repeat_rules() -> tuple[RepeatRule, ...]:
    """The same as rules of a policy: codes with the same numbers share one, the last holds for all others."""
    return (*_shared_rules(), OTHERS)


def _shared_rules() -> Iterator[RepeatRule]:
    codes: dict[tuple[int, float, float | None], list[str]] = {}
    for rule in frequency_rules().values():
        codes.setdefault((rule.times, rule.window_s, rule.release_s), []).append(rule.code)
    for (times, window_s, release_s), names in codes.items():
        yield RepeatRule(times, window_s, tuple(names), release_s)
