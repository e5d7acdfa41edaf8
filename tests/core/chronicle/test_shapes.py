"""The JSON shapes, completed by what their reader has."""

from __future__ import annotations

import pytest

from everstep.chronicle.shapes import is_virtual, moment, with_age

DAY_S = 86_400.0
CREATED = 1_790_000_000.0


@pytest.mark.parametrize(
    ("as_of", "run_began", "duration_s"),
    [
        (CREATED, CREATED, 90.0),  # it waits for its places since then
        (CREATED + 60, CREATED - 1, 90.0),
        (CREATED, CREATED + 2 * DAY_S, 0.0),  # a virtual clock that began long ago
        (CREATED + 30 * DAY_S, CREATED, 0.0),  # and one that is far ahead
    ],
)
def test_a_job_that_has_not_ended_is_there_until_now(
    as_of: float, run_began: float, duration_s: float
) -> None:
    status = {"as_of": moment(as_of), "created_at": moment(CREATED), "duration_s": 0.0}
    assert with_age(status, CREATED + 90, run_began=run_began)["duration_s"] == duration_s


@pytest.mark.parametrize(
    ("cluster_time", "is_expected"),
    [
        (CREATED + 60, False),  # nothing was reported since
        (CREATED - DAY_S, False),
        (CREATED - DAY_S - 1, True),
        (CREATED + 30 * DAY_S, False),
        (CREATED + 31 * DAY_S + 1, True),
    ],
)
def test_a_clock_is_virtual_if_it_was_never_near_that_of_the_server(
    cluster_time: float, is_expected: bool
) -> None:
    now = CREATED + 30 * DAY_S
    assert is_virtual(cluster_time, now, run_began=CREATED) == is_expected


def test_a_job_of_which_nothing_is_known_has_no_duration() -> None:
    status = {"as_of": None, "created_at": None, "duration_s": None}
    assert with_age(status, CREATED, run_began=CREATED) == status
