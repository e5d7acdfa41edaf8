"""What the list of the Temporal UI shows: a row that closed says how, in its colour and its attributes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from everstep.client.jobs.found_job import find
from everstep.client.jobs.history import all_records
from everstep.core.levels import FaultClass
from everstep.dialects import job_memo
from tests.support.builders import running, sighting
from tests.support.byhand import closed
from tests.support.patience import HUNG_S
from tests.support.rows import Row, recoveries, recovery, row_of
from tests.support.scene import Scene, restarts_of
from tests.support.stage import Handle, document
from workflows import attributes


@pytest.fixture
async def scene(shared: Scene) -> Scene:
    await shared.new_cluster(nodes=5)
    return shared


async def restart_rows(scene: Scene, job: Handle, restarts: int) -> list[Row]:
    workflows = [await recovery(scene.stage.client, job, n + 1) for n in range(restarts)]
    return [await row_of(scene.stage.client, workflow) for workflow in workflows]


def test_the_row_of_a_job_has_no_step_of_a_generation_before() -> None:
    job = running()
    job.report(step=65)
    last_steps = [attributes.of_job(job.state, job.chronicle)["LastStep"]]
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    last_steps.append(attributes.of_job(job.state, job.chronicle)["LastStep"])
    job.report(step=61)
    last_steps.append(attributes.of_job(job.state, job.chronicle)["LastStep"])
    assert last_steps == [65, None, 61]


async def failure(job: Handle, kind: str = "WORKFLOW_EXECUTION_FAILED") -> Failure:
    """As it is kept in the history, and shown in the UI."""
    event_type = EventType.Value(f"EVENT_TYPE_{kind}")
    (event,) = [e for e in (await job.fetch_history()).events if e.event_type == event_type]
    return event.workflow_execution_failed_event_attributes.failure


DID = ("COMPLETED", "completed", "success")


async def test_the_row_of_a_restart_that_gave_way_says_so(scene: Scene) -> None:
    faults = ["at 35s node-down n1", "at 36s node-down n2"]
    job = await scene.running(document("closing", nodes=3), faults=faults)
    report = await scene.end(job)
    expected = [("COMPLETED", "stopped", "superseded"), DID]
    assert await restart_rows(scene, job, len(expected)) == expected, restarts_of(report)
    assert await row_of(scene.stage.client, job.id) == DID


OF_ITS_END = ("recover_result", "isolated", "generation", "resume_step", "evidence", "notes")


async def test_rows_have_the_records_of_the_job_and_a_failed_level_is_a_failed_workflow(
    scene: Scene,
) -> None:
    """The failed one has a sentence and its outcome."""
    faults = ["heal-takes n1 0 2h", "at 35s device n1 0 80E01801 heals", "at 9000s kill rows 0"]
    job = await scene.running(document("rows", env={"STEPS": "9500"}), faults=faults)
    report = await scene.end(job)
    records = job_memo.restarts_of(report)
    client = scene.stage.client
    assert {*await recoveries(client, job)} == {
        "rows/main/recovery-1-in_place-device-n1",
        "rows/main/recovery-2-pod-device-n1",
        "rows/main/recovery-3-in_place-crash-n0",
    }
    assert (await (await job.describe()).memo())["report"] == report
    restart = client.get_workflow_handle(await recovery(client, job))
    with pytest.raises(WorkflowFailureError) as caught:
        await restart.result()
    error = caught.value.cause
    assert isinstance(error, ApplicationError)
    assert (error.type, error.details[0]["result"]) == ("RecoveryFailed", "failed")
    story = "restart 1 · in_place · 80E01801 on n1/0"
    assert error.message == f"{story} failed at heal: n1/0 did not heal"
    assert (await failure(restart)).stack_trace == ""
    assert await restart_rows(scene, job, 3) == [("FAILED", "failed", "failed"), DID, DID]
    assert await row_of(scene.stage.client, job.id) == DID
    rows = await until_listed(client, job, len(records))
    for record, row in zip(records, rows, strict=True):
        assert {k: row[k] for k in OF_ITS_END} == {k: record[k] for k in OF_ITS_END}
        stages = {**record["stages_s"], "first_step": None}  # which comes after the Recovery
        assert row["stages_s"] == stages
        assert row["recover_end_at"] is not None
    assert [record["recover_result"] for record in records] == ["downgrade", "success", "success"]


async def until_listed(client: Client, job: Handle, count: int) -> list[dict[str, Any]]:
    """The records of the Recoveries' rows, once the server lists all as closed."""
    async with asyncio.timeout(HUNG_S):
        while True:
            rows = await all_records(await find(client, job.id), newest=[])
            if len(rows) == count and all(row["recover_result"] != "recovering" for row in rows):
                return rows
            await asyncio.sleep(0.05)


async def test_a_failed_job_fails_in_a_sentence(scene: Scene) -> None:
    rule = {"match": {"exit_code": [3]}, "action": "fail", "why": "bad configuration"}
    body = document("one-sentence", recovery={"rules": [rule]})
    job = await scene.running(body, faults=["at 35s kill one-sentence 1 exit 3"])
    with pytest.raises(WorkflowFailureError):
        await scene.end(job)
    failure_text = await failure(job)
    assert "bad configuration" in failure_text.message
    assert (failure_text.message.count("\n"), failure_text.stack_trace) == (0, "")
    assert not failure_text.HasField("cause")
    assert await row_of(scene.stage.client, job.id) == ("FAILED", "failed", None)


async def test_the_restart_of_a_terminated_job_closes_in_order(scene: Scene) -> None:
    job = await scene.running(document("shot"), faults=["at 35s node-down n1"])
    await scene.held_at("ensure_placed")
    await job.terminate("by hand")
    recovery_handle = await recovery(scene.stage.client, job)
    await scene.admin.release()
    await closed(scene.stage, recovery_handle)
    assert await row_of(scene.stage.client, recovery_handle) == ("CANCELED", "stopped", "cancelled")


async def test_a_refused_document_leaves_a_failed_row(scene: Scene) -> None:
    job = await scene.stage.submit({"kind": "TrainingJob"}, job_id="refused")
    with pytest.raises(WorkflowFailureError):
        await job.result()
    assert await row_of(scene.stage.client, "refused") == ("FAILED", "failed", None)
    assert (await failure(job)).stack_trace == ""
