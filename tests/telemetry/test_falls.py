"""Sums that are exported as counters never fall, as a counter that does is taken for one that was reset."""

from __future__ import annotations

from everstep.telemetry.metrics import without_falls


def test_a_sum_that_falls_stands_still_until_it_is_higher_than_it_was() -> None:
    highest: dict[str, float] = {}
    looks = (
        {"training": 30_000.0},
        {"training": 2_600.0, "lost": 27_400.0},
        {"training": 40_000.0, "lost": 27_400.0},
    )
    exported = [dict(without_falls(highest, sums)) for sums in looks]
    assert [each["training"] for each in exported] == [30_000.0, 30_000.0, 40_000.0]
    assert [each.get("lost") for each in exported] == [None, 27_400.0, 27_400.0]
