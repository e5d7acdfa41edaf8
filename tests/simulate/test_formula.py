"""Where the exact formula applies, the simulation agrees with it."""

from __future__ import annotations

from math import exp

import pytest

from everstep.simulate.accounts import CAUSES
from everstep.simulate.experiment import CAUSE_NAMES, results
from everstep.simulate.fault_classes import DAY_S
from everstep.simulate.jobs import JobNumbers
from tests.simulate.scenes import CURED, experiment, profile

POINTS = 0.005
NODES = 2
SAME_RESTART = {"ladders": {"crash": ["in_place"]}, "no_progress_restarts": None}
"""The formula has one kind of restart, however many come in a row."""


def expected_ettr(
    *, between_faults_s: float, recovery_s: float, checkpoint_s: float, write_s: float
) -> float:
    """The share of time that is useful. A checkpoint follows each `checkpoint_s` of training.

    For faults that come at random, also during a recovery, and that a restart cures (Daly, 2006).
    """
    m = between_faults_s
    return checkpoint_s / (m * exp(recovery_s / m) * (exp((checkpoint_s + write_s) / m) - 1))


def long(*row: object) -> object:
    return pytest.param(*row, marks=pytest.mark.long)


def of_checkpoints(numbers: JobNumbers) -> dict[str, float]:
    return {
        "recovery_s": numbers.start_s + numbers.load_s,
        "checkpoint_s": numbers.checkpoint_s,
        "write_s": numbers.write_s,
    }


def of_snapshots(numbers: JobNumbers) -> dict[str, float]:
    return {
        "recovery_s": numbers.start_s + numbers.restore_s,
        "checkpoint_s": numbers.snapshot_every_s,
        "write_s": numbers.snapshot_s,
    }


@pytest.mark.parametrize(
    ("between_h", "numbers", "share"),
    [
        (3.1, JobNumbers(start_s=100.0, load_s=50.0), 0.972),
        long(3.1, JobNumbers(write_s=0.0, library="snapshots", snapshot_every_s=60.0), None),
        long(6.3, JobNumbers(), 0.989),
        long(6.3, JobNumbers(checkpoint_s=3_600.0), 0.921),
        long(3.1, JobNumbers(checkpoint_s=900.0, write_s=5.0, start_s=300.0, load_s=300.0), None),
    ],
)
def test_the_share_of_useful_time_is_that_of_the_formula(
    between_h: float, numbers: JobNumbers, share: float | None
) -> None:
    """`share`: as published tables of this formula have it."""
    days = 400 * between_h / 24
    rate = 24_000 / between_h / NODES
    made = experiment(
        NODES,
        spec={"recovery": SAME_RESTART},
        numbers=numbers,
        days=days,
        seeds=(1,),
        profile=profile(CURED, rate=rate),
        policies=experiment().policies[:1],
    )
    expected = expected_ettr(
        between_faults_s=1_000 / rate / NODES * DAY_S,
        **(of_checkpoints(numbers) if numbers.library == "none" else of_snapshots(numbers)),
    )
    if share is not None:
        assert expected == pytest.approx(share, abs=0.001)
    (row,) = results(made)["policies"]
    assert row["restarts"] > 350
    assert row["ended_wrongly"] == 0
    assert row["ettr"] == pytest.approx(expected, abs=POINTS)
    assert set(row["lost"]) == set(CAUSES) == set(CAUSE_NAMES)
    assert row["ettr"] + sum(row["lost"].values()) == pytest.approx(1.0, abs=1e-6)
