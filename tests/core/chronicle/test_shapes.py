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


@pytest.mark.parametrize(
    ("state", "step_age_s", "seen_age_s"),
    [("running", 55.0, 52.0), ("unreachable", 55.0, 52.0), ("launching", None, None)],
)
def test_a_step_is_as_old_as_it_is_and_not_as_the_look_that_saw_it(
    state: str, step_age_s: float | None, seen_age_s: float | None
) -> None:
    """Its cluster has not answered for 52 s: it was shown as `running, step 12, 0s ago`."""
    times = {"created_at": moment(CREATED), "as_of": moment(CREATED + 38)}
    status = {**times, "state": state, "step": 12, "step_at": moment(CREATED + 35)}
    aged = with_age(status, CREATED + 90, run_began=CREATED)
    assert (aged.get("step_age_s"), aged.get("seen_age_s")) == (step_age_s, seen_age_s)


def test_a_job_of_which_nothing_is_known_has_no_duration() -> None:
    status = {"as_of": None, "created_at": None, "duration_s": None}
    assert with_age(status, CREATED, run_began=CREATED) == status
