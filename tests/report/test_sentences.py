"""How people read the numbers of a report."""

from __future__ import annotations

import pytest

from everstep.report.sentences import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (43.14, "43 s"),
        (59.7, "1 min"),
        (119.7, "2 min"),
        (125.0, "2 min 5 s"),
        (3_580.0, "59 min 40 s"),
        (3_599.7, "1 h"),
        (7_199.9, "2 h"),
        (85_000.0, "23 h 37 min"),
        (86_399.9, "1 d"),
        (90_000.0, "1 d 1 h"),
    ],
)
def test_a_duration_is_rounded_before_it_is_divided(seconds: float, words: str) -> None:
    assert duration(seconds) == words
