"""How often a job without news is looked at, so that `status` shows its progress."""

from __future__ import annotations

import pytest

from everstep.steps.watch import quiet_s


@pytest.mark.parametrize(
    ("jobs", "pods", "time_scale", "wait_s"),
    [
        (1, 1, 1.0, 0.75),
        (20, 200, 1.0, 0.75),
        (66, 1, 1.0, 2.0),
        (1, 600, 1.0, 2.0),
        (200, 1, 1.0, 3.0),
        (10_000, 10_000, 1.0, 3.0),
        (10_000, 1, 60.0, 1.0),
    ],
)
def test_a_worker_with_few_jobs_looks_at_each_more_often(
    jobs: int, pods: int, time_scale: float, wait_s: float
) -> None:
    assert quiet_s(jobs, pods, time_scale) == wait_s
