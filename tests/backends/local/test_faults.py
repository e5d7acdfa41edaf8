"""Faults of the local cluster that find nothing to happen to."""

from __future__ import annotations

import pytest

from everstep.backends.tools import NothingRuns
from everstep.core.world import PodState
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


async def test_a_job_between_two_pods_is_there(local_lab: LocalLab) -> None:
    job = Run(local_lab)
    await job.new_generation("before its first pods")
    with pytest.raises(NothingRuns, match="nothing of demo runs now"):
        await local_lab.fault("kill demo 0")
    with pytest.raises(ValueError, match="there is no job 'other' on this cluster"):
        await local_lab.fault("kill other 0")


async def test_the_storage_of_a_job_without_pods_breaks_and_comes_back(local_lab: LocalLab) -> None:
    """A job that waits for its storage may have lost its pods meanwhile."""
    job = Run(local_lab)
    await job.new_generation("before its first pods")
    for state in ("unwritable", "writable"):
        await local_lab.fault(f"storage demo {state}")
        facts = (await job.backend.observe(job.ref, cursor="", until=0.0, wait_s=0.0)).facts
        assert f"storage.{state}" in {fact.kind for fact in facts}


async def test_a_rank_or_an_agent_cannot_be_killed_twice(local_lab: LocalLab) -> None:
    """The other rank lives on: it is not the job that has ended."""
    job = Run(local_lab, slots=(0, 1), env={"STEPS": "100000"})
    await job.launch()
    await local_lab.fault("kill demo 0")
    await job.see(
        lambda observation: (0, PodState.EXITED) in {(p.slot, p.state) for p in observation.pods}
    )
    for line in ("kill demo 0", "hang demo 0"):
        with pytest.raises(NothingRuns, match="rank 0 of demo has ended"):
            await local_lab.fault(line)
    await local_lab.fault("kill demo 1 signal 0")  # this one is there
    await local_lab.fault("kill-agent demo 1")
    await job.see(
        lambda observation: (1, PodState.LOST) in {(p.slot, p.state) for p in observation.pods}
    )
    with pytest.raises(NothingRuns, match="the agent of slot 1 of demo does not run"):
        await local_lab.fault("kill-agent demo 1")
