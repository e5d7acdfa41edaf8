"""What goes wrong in a simulation: as often as its profile says, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from everstep.simulate.fault_classes import FALSE_ALARMS, PROFILES, ROWS, row_named
from everstep.simulate.mishaps import drawn, poisson_quantile, spares_for
from everstep.simulate.policies import DIALECTS, POLICIES


def test_each_row_and_each_profile_says_where_it_is_from() -> None:
    for row in (*ROWS, *FALSE_ALARMS):
        assert len(row.source) > 20, row.name
        assert row_named(row.name) is row
    assert all(profile.source for profile in PROFILES.values())
    assert not set(POLICIES) & set(DIALECTS)


def test_the_shares_of_all_faults_are_a_whole() -> None:
    assert sum(row.share for row in ROWS) == pytest.approx(1.0)
    assert sum(row.share for row in FALSE_ALARMS) == pytest.approx(1.0)


def test_faults_are_as_frequent_as_the_profile_says() -> None:
    reference = replace(PROFILES["reference"], together=0.0)
    mishaps = drawn(reference, nodes=1_000, days=300, seed=3)
    counts = Counter(mishap.name for mishap in mishaps)
    for row in ROWS:
        expected = row.share * 3.8 * 300
        assert counts[row.name] == pytest.approx(expected, abs=4 * expected**0.5 + 1)
    assert counts["false_device"] == pytest.approx(0.42 * 300, abs=50)
    assert [one.at_s for one in mishaps] == sorted(one.at_s for one in mishaps)


def test_a_tenth_of_the_nodes_has_two_fifths_of_the_faults() -> None:
    mishaps = drawn(PROFILES["reference"], nodes=400, days=3_000, seed=1)
    counts = Counter(one.nodes[0] for one in mishaps if len(one.nodes) == 1)
    worst = sum(count for _, count in counts.most_common(40))
    assert worst / counts.total() == pytest.approx(0.41, abs=0.06)


def test_the_same_seed_has_the_same_mishaps_and_another_one_has_others() -> None:
    def of(seed: int) -> object:
        return drawn(PROFILES["reference"], nodes=100, days=30, seed=seed)

    assert of(7) == of(7)
    assert of(7) != of(8)


def test_more_days_add_mishaps_and_change_none() -> None:
    short, long = (drawn(PROFILES["bad"], nodes=50, days=days, seed=2) for days in (10, 20))
    assert set(short) <= set(long)


@pytest.mark.parametrize(
    ("mean", "spares"), [(3.8 * 0.128, 3), (3.8, 9), (3.8 * 2.048, 15), (38.0, 53)]
)
def test_spares_are_the_99th_percentile_of_what_is_out(mean: float, spares: int) -> None:
    """As published for 128, 1,000, 2,048 and 10,000 nodes that are back after a day."""
    assert poisson_quantile(mean, 0.99) == spares


def test_larger_jobs_need_more_spares_but_not_in_proportion() -> None:
    few, many = (spares_for(PROFILES["reference"], nodes) for nodes in (100, 1_000))
    assert few < many < 10 * few
