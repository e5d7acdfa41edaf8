"""Workflows of others under IDs of ours: none of them is ended, and none of them holds up a job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from everstep import plugin
from everstep.core import names
from tests.support.at_work import at_work, submit, thinker
from tests.support.byhand import NODE, brought_to, restarts_of
from tests.support.devserver import DevServer
from tests.support.moments import Call
from tests.support.patience import HUNG_S
from tests.support.stage import Stage, document

RUNNING = WorkflowExecutionStatus.RUNNING


@pytest.mark.parametrize(
    "job_id",
    ["demo/main/recovery-1-pod-node-n2", "janitor/local", "quarantine/local"],
)
async def test_a_job_under_an_id_of_ours_is_refused(client: Client, job_id: str) -> None:
    async with at_work(thinker(client)):
        job = await submit(client, document(), job_id=job_id)
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(job.result(), HUNG_S)
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "InvalidSpec"
    assert job_id in cause.message


@pytest.mark.parametrize(
    "kind", ["SomethingElse", pytest.param(names.RECOVERY, marks=pytest.mark.long)]
)
async def test_a_restart_whose_id_another_workflow_has_takes_the_next_id(
    server: DevServer, namespace: str, tmp_path: Path, kind: str
) -> None:
    used_id = "demo/main/recovery-1-pod-node-n2"
    async with Stage(server, namespace, tmp_path) as stage:
        foreign = await stage.client.start_workflow(kind, id=used_id, task_queue="nobody")
        job = await brought_to(stage, NODE, Call("ensure_generation", "after"))
        status = await job.query("status")
        assert status["recovery"] == "demo/main/recovery-1~2-pod-node-n2"
        recovery = await stage.client.get_workflow_handle(status["recovery"]).describe()
        assert (recovery.workflow_type, recovery.status) == (names.RECOVERY, RUNNING)
        (event,) = [e for e in await job.query("events") if used_id in e["message"]]
        assert (event["level"], kind in event["message"]) == ("Warning", True)
        await stage.admin.release()
        report = await asyncio.wait_for(job.result(), HUNG_S)
        assert restarts_of(report) == [("pod", "success", {"hardware": 1})]
        assert (await foreign.describe()).status is RUNNING


async def test_a_janitor_whose_id_another_workflow_has_is_back_once_that_one_ends(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    used_id = names.janitor_id("local")
    foreign = await client.start_workflow("SomethingElse", id=used_id, task_queue="nobody")
    keeping = asyncio.create_task(plugin.keep_janitor(client, "local", every_s=0.05))
    try:
        async with asyncio.timeout(HUNG_S):
            while "SomethingElse" not in caplog.text:
                await asyncio.sleep(0.02)
            (warning,) = caplog.messages
            assert f"temporal workflow terminate --workflow-id {used_id}" in warning
            await foreign.terminate()
            while (await client.get_workflow_handle(used_id).describe()).status is not RUNNING:
                await asyncio.sleep(0.02)
        assert (await client.get_workflow_handle(used_id).describe()).workflow_type == names.JANITOR
        assert caplog.messages == [warning], "once"
    finally:
        keeping.cancel()
