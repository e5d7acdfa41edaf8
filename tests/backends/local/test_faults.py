"""Faults of the local cluster that find nothing to happen to."""

from __future__ import annotations

import pytest

from everstep.backends.tools import NothingRuns
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab


async def test_a_rank_cannot_be_killed_where_nothing_runs(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000"})
    await job.launch()
    with pytest.raises(ValueError, match="has no rank 7"):
        await local_lab.fault("kill demo 7")
    await job.new_generation("a pause")
    await job.stop()
    for line in ("kill demo 0", "hang demo 0"):
        with pytest.raises(NothingRuns, match="nothing of demo runs now"):
            await local_lab.fault(line)
