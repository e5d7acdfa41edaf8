"""The same crash for ever, as a peer had it on one checkpoint: the end comes when the document says so."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowFailureError

from tests.support.scene import Scene
from tests.support.stage import document

CRASHES = {"STEPS": "60", "CRASH_AT_STEP": "1:35:1", "CRASH_EXCEPTION": "ValueError: bad shard"}


@pytest.mark.long
@pytest.mark.parametrize("every", [30, 10], ids=["on one checkpoint", "with others before it"])
async def test_44_crashes_end_with_a_report_that_names_step_and_error(
    scene: Scene, every: int
) -> None:
    """Only this one counts so many incidents of a workflow, up to the report that is read."""
    env = {**CRASHES, "CHECKPOINT_EVERY": str(every)}
    recovery = {"no_progress_restarts": 43}
    job = await scene.stage.submit(document(f"crash-{every}", env=env, recovery=recovery))
    with pytest.raises(WorkflowFailureError):
        await job.result()
    report = await (await job.describe()).memo_value("report")
    assert report["status"] == "Failed"
    assert "no progress after 43 restarts; the last: exit code 1" in report["reason"]
    assert "ValueError at step 34, 44 times in a row: probably the code" in report["reason"]
    (phase,) = report["phases"]
    last = phase["restarts"][-1]
    assert (last["incident"], last["resume_step"]) == (43, 30)
    assert phase["last_checkpoint_step"] == 30
