"""A job is stopped or paused while any call to the cluster is under way.

Whatever the call was: the job ends as ordered, nothing of it is left, and no Recovery outlives it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from tests.support.patience import HUNG_S
from tests.support.rows import recoveries
from tests.support.scene import Scene, tell, until, until_state
from tests.support.stage import Handle, document

pytestmark = pytest.mark.long

OF_A_LAUNCH = ("ensure_generation", "ensure_stopped", "ensure_placed", "ensure_fenced")
OF_BOTH = ("checkpoints", "ensure_started", "observe")
OF_A_RECOVERY = ("nodes", "ensure_isolated")
OF_NO_JOB = frozenset({"clock", "nodes", "ensure_isolated"})
MOMENTS = [
    *(("launch", verb) for verb in OF_A_LAUNCH + OF_BOTH),
    *(("recovery", verb) for verb in OF_A_LAUNCH + OF_BOTH + OF_A_RECOVERY),
]
SIDES = ("before", "after")


async def caught(scene: Scene, name: str, when: str, verb: str, side: Any) -> Handle:
    """The job, while this call is held."""
    await scene.new_cluster()
    of = None if verb in OF_NO_JOB else name
    body = document(name, env={"STEPS": "60"})
    if when == "launch":
        await scene.admin.hold(verb, when=side, job=of)
        job = await scene.stage.submit(body)
    else:
        job = await scene.running(body, faults=["at 35s node-down n2"])
        await scene.admin.hold(verb, when=side, job=of)
        await scene.clock.let_go()
    await scene.admin.wait_held()
    return job


async def outliving(scene: Scene, job: Handle) -> set[str]:
    """The Recoveries of this job that still run."""
    rows = await recoveries(scene.stage.client, job)
    return {row for row, status in rows.items() if status is WorkflowExecutionStatus.RUNNING}


def called(*parts: str) -> str:
    return "-".join(parts).replace("_", "-")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("when", "verb"), MOMENTS)
async def test_a_stop_at_any_call_ends_the_job(
    shared: Scene, when: str, verb: str, side: str
) -> None:
    job = await caught(shared, called("stop", when, verb, side), when, verb, side)
    await tell(job, "stop")
    await shared.admin.release()
    report = await asyncio.wait_for(job.result(), HUNG_S)
    assert report["status"] == "Terminated"
    assert await shared.stage.fake.leftovers() == ()
    assert await outliving(shared, job) == set()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("when", "verb"), [("launch", "clock"), *MOMENTS])
async def test_a_cancel_at_any_call_ends_the_job(
    shared: Scene, when: str, verb: str, side: str
) -> None:
    name = called("cancel", when, verb, side)
    job = await caught(shared, name, when, verb, side)
    await job.cancel()
    await shared.admin.release()
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(job.result(), HUNG_S)
    assert (await job.describe()).status is WorkflowExecutionStatus.CANCELED
    assert await shared.stage.fake.leftovers() == ()
    assert await outliving(shared, job) == set()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("when", "verb"), MOMENTS)
async def test_a_pause_at_any_call_is_kept_until_resume(
    shared: Scene, when: str, verb: str, side: str
) -> None:
    job = await caught(shared, called("pause", when, verb, side), when, verb, side)
    await tell(job, "pause")
    await shared.admin.release()
    await until_state(job, "paused")
    await tell(job, "resume")
    await until(job, lambda status: status["state"] != "paused")
    report = await asyncio.wait_for(job.result(), HUNG_S)
    assert report["status"] == "Completed"
    results = [r["recover_result"] for r in report["phases"][0]["restarts"]]
    assert results[-1:] in ([], ["success"])
    assert report["phases"][0]["isolated_nodes"] == (["n2"] if when == "recovery" else [])
