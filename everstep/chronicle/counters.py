"""Adding up `JobTotals`: a value to one of its counters, and those of two jobs. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TypeVar

from everstep.chronicle.chronicle import JobTotals

BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400)
"""Upper bounds of the histograms of durations: from 50 ms to hours."""

Stages = Mapping[str, Mapping[int, tuple[int, float]]]
"""A histogram for each stage: index in BUCKETS_S -> how many took that long, and their seconds in all.

    {"stop": {3: (2, 0.7)}}: two stops took 0.2 to 0.5 s, 0.7 s together.
"""


def with_stage(stages: Stages, stage: str, took: float) -> Stages:
    """The histograms with one more stage, which took so many seconds."""
    buckets = stages.get(stage, {})
    bucket = bisect_left(BUCKETS_S, took)
    count, total = buckets.get(bucket, (0, 0.0))
    return {**stages, stage: {**buckets, bucket: (count + 1, round(total + took, 6))}}


Number = TypeVar("Number", int, float)


def sums(one: Mapping[str, Number], other: Mapping[str, Number]) -> dict[str, Number]:
    """The sum for each key of either."""
    keys = {**one, **other}
    return {key: one.get(key, 0) + other.get(key, 0) for key in keys}


def known_sum(one: int | None, other: int | None) -> int | None:
    """The sum; unknown if either is."""
    return None if one is None or other is None else one + other


def sum_of_totals(one: JobTotals, other: JobTotals) -> JobTotals:
    """The sum of two, without `ended`."""
    stages = {
        stage: _sum_of_histograms(one.stages.get(stage, {}), other.stages.get(stage, {}))
        for stage in {**one.stages, **other.stages}
    }
    return JobTotals(
        restarts=sums(one.restarts, other.restarts),
        stages=stages,
        time_s=sums(one.time_s, other.time_s),
        lost_s=sums(one.lost_s, other.lost_s),
        lost_steps=known_sum(one.lost_steps, other.lost_steps),
        budgets=sums(one.budgets, other.budgets),
    )


def _sum_of_histograms(
    one: Mapping[int, tuple[int, float]], other: Mapping[int, tuple[int, float]]
) -> dict[int, tuple[int, float]]:
    total = dict(one)
    for bucket, (count, took_s) in other.items():
        count_before, took_s_before = total.get(bucket, (0, 0.0))
        total[bucket] = (count_before + count, took_s_before + took_s)
    return total
