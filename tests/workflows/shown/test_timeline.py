"""What the timeline of the Temporal UI shows: each bar has a text. One without is shown by its number."""

from __future__ import annotations

from pathlib import Path

from temporalio.api.enums.v1 import EventType

from tests.support.devserver import DevServer
from tests.support.scene import until
from tests.support.stage import Stage, document

BARS = {
    EventType.Value(f"EVENT_TYPE_{kind}")
    for kind in (
        "ACTIVITY_TASK_SCHEDULED",
        "TIMER_STARTED",
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
    )
}


async def test_each_bar_has_a_text(server: DevServer, namespace: str, tmp_path: Path) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.fault("at 30s kill demo 1 exit 1")
        job = await stage.submit(document(env={"STEPS": "100000000"}))
        await until(
            job, lambda status: bool(status["restarts"] == 1) and status["state"] == "running"
        )
        await stage.admin.hold("ensure_recorded", job="demo")  # so that the job waits at its end
        await job.execute_update("stop", {})
        await stage.admin.wait_held()
        await stage.admin.release()
        await job.result()
        bars = [e for e in (await job.fetch_history()).events if e.event_type in BARS]
    assert {event.event_type for event in bars} == BARS
    assert [event for event in bars if not event.user_metadata.summary.data] == []
