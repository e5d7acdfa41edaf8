"""Commands about jobs that run or have ended, with a stand-in for the workflows."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from tests.cli.conftest import AsyncCli, ended, submitted, until
from tests.cli.standin import JOB, document, record, working

STATUS_KEYS = {
    "id",
    "state",
    "phase",
    "phases",
    "generation",
    "step",
    "checkpoint_step",
    "waiting_for",
    "waiting_reason",
    "recovery",
    "pods",
    "budgets",
    "series",
    "restarts",
    "reschedules",
    "isolated_nodes",
    "ui",
}


# -- a job that runs ----------------------------------------------------------------------------


async def test_status_has_the_pinned_keys_and_the_newest_step(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_UI_ADDRESS", "https://ui")

    async def is_watched() -> bool:
        description = await client.get_workflow_handle("demo").describe()
        return any(
            p.HasField("heartbeat_details") for p in description.raw_description.pending_activities
        )

    async with working(client):
        await submitted(served, document())
        await until(is_watched)
        status = (await served("status", "demo", "--json")).json
        page = (await served("status", "demo")).out
    assert status.keys() >= STATUS_KEYS
    assert (status["step"], status["checkpoint_step"]) == (57, 50)  # the query alone says 41, 40
    assert status["ui"] == f"https://ui/namespaces/{client.namespace}/workflows/demo"
    assert "gpu-01" in page
    assert "pod 2 of 3" in page


async def test_restarts_and_why_are_the_answers_of_the_job(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await submitted(served, document())
        ((job, rows),) = (await served("restarts", "demo", "--mindcluster")).json.items()
        assert (job, rows["TotalRescheduleTimes"]) == ("demo", len(rows["RescheduleRecords"]))
        assert (await served("restarts", "demo", "--json")).json == [
            {**record(3), "life": 1},
            {**record(4, result="recovering"), "life": 1},
        ]
        page = (await served("restarts", "demo")).out
        assert "XID 79 on gpu-07/3" in page
        assert (await served("why", "demo")).out.startswith("restart 4 of phase main")
        assert (await served("why", "demo", "3", "--json")).json["restart"]["n"] == 3
        absent = await served("why", "demo", "9")
        assert absent.code == 3
        assert "no restart 9" in absent.sentence


async def test_commands_reach_the_job_once_each(served: AsyncCli, client: Client) -> None:
    async with working(client):
        await submitted(served, document())
        paused = await served("pause", "demo", "--reason", "new switch")
        # The answer comes before the job acts.
        assert paused.out == "demo: pause accepted; the job was running\n"
        refused = await served("pause", "demo")
        assert refused.code == 2
        assert refused.sentence == "demo refuses: the job is paused already"
        assert (await served("resume", "demo", "--json")).json["accepted"] is True
        await served("restart", "demo", "--level", "pod", "--reason", "tired")
        updates = await client.get_workflow_handle("demo").query("told")
        assert (await served("stop", "demo", "--grace-s", "2.5")).code == 0
        await client.get_workflow_handle("demo").result()
        late = await served("pause", "demo")
    ids = [command.pop("id") for command in updates]
    assert len(set(ids)) == len(ids) == 3
    assert updates == [
        {"update": "pause", "reason": "new switch"},
        {"update": "resume"},
        {"update": "restart", "level": "pod", "reason": "tired"},
    ]
    assert late.code == 2
    assert "demo has ended" in late.sentence


# -- a job that has ended, and no worker --------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "stopped", "failed"])
async def test_after_the_end_the_memo_answers_without_a_worker(
    served: AsyncCli, client: Client, state: str
) -> None:
    async with working(client):
        await ended(served, client, state)
    status = (await served("status", "demo", "--json")).json
    assert status.keys() >= STATUS_KEYS
    assert (status["state"], status["reason"]) == (state, "because")
    restarts = (await served("restarts", "demo", "--json")).json
    assert restarts == [{**record(1), "life": 1}, {**record(2), "life": 1}]
    why = (await served("why", "demo", "1")).out
    assert "restart 1 of phase main" in why
    assert "the device cannot repair itself" in why
    assert (await served("why", "demo", "7")).code == 3
    assert (await served("why", "demo", "1", "--phase", "main")).out == why
    absent = await served("why", "demo", "1", "--phase", "warmup")
    assert (absent.code, "no restart 1 of phase warmup" in absent.sentence) == (3, True)


@pytest.mark.parametrize("state", ["completed", "stopped", "failed"])
async def test_a_command_that_is_too_late_names_the_end_that_came_before(
    served: AsyncCli, client: Client, state: str
) -> None:
    async with working(client):
        await ended(served, client, state)
    late = await served("stop", "demo")
    assert late.code == 2
    assert late.sentence == f"demo has ended ({state}): stop is too late"


async def test_a_document_refused_by_the_worker_is_explained(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await ended(served, client, "invalid")
    status = (await served("status", "demo", "--json")).json
    assert status.keys() >= STATUS_KEYS
    assert (status["state"], status["reason"]) == ("failed", "spec.nodes: must be a whole number")
    state = (await served("status", "demo", "--modelarts")).json["status"]
    assert (state["phase"], state["secondary_phase"]) == ("Failed", "CreateFailed")
    assert [r["end_reason"] for r in state["running_records"]] == [status["reason"]]
    (event,) = (await served("events", "demo", "--json")).json
    assert (event["level"], event["event"]) == ("Error", "JobFailed")
    assert event["message"] == f"failed: {status['reason']}"
    assert (await served("restarts", "demo", "--json")).json == []
    assert "spec.nodes" in (await served("why", "demo")).out


async def test_a_job_that_was_terminated_is_lost_to_modelarts(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await submitted(served, document())
        await client.get_workflow_handle("demo").terminate()
    details = (await served("status", "demo", "--modelarts")).json
    assert (details["status"]["phase"], details["status"]["secondary_phase"]) == (
        "Abnormal",
        "Lost",
    )
    begun = (await client.get_workflow_handle("demo").describe()).start_time
    assert details["metadata"]["create_time"] == int(begun.timestamp() * 1000)
    (event,) = (await served("events", "demo", "--json")).json
    assert event["message"].startswith("stopped: terminated")


async def test_a_terminated_job_is_stopped(served: AsyncCli, client: Client) -> None:
    await submitted(served, document())
    await client.get_workflow_handle("demo").terminate(reason="wrong cluster")
    status = (await served("status", "demo", "--json")).json
    assert status.keys() >= STATUS_KEYS
    assert (status["state"], status["reason"]) == ("stopped", "terminated: wrong cluster")
    assert "terminated: wrong cluster" in (await served("status", "demo")).out


async def test_all_restarts_include_those_the_job_forgot(served: AsyncCli, client: Client) -> None:
    async def old(n: int, outcome: dict[str, Any] | None, job: str = "demo") -> None:
        row = await client.start_workflow(
            "Recovery",
            outcome,
            id=f"{job}/main/recovery-{n}-pod-node-n2",
            task_queue="everstep",
            memo={"record": record(n, result="recovering")},
            search_attributes=TypedSearchAttributes([SearchAttributePair(JOB, job)]),
        )
        await row.result()

    done = {
        "recover_result": "success",
        "generation_to": 9,
        "stages_s": {"stop": 4.0},
        "resume_step": 20,
    }
    failed: dict[str, Any] = {"recover_result": "downgrade", "generation_to": None, "stages_s": {}}

    async def are_listed() -> bool:
        rows = await client.count_workflows("WorkflowType = 'Recovery'")
        return rows.count == 5

    async with working(client):
        await old(1, done)  # of an earlier job of this name
        await submitted(served, document())
        await old(1, failed)
        await old(2, done)
        await old(3, failed)  # known better by the job itself
        await old(2, done, job="other")
        await until(are_listed)
        restarts = (await served("restarts", "demo", "--all", "--json")).json
        assert [r["n"] for r in restarts] == [1, 2, 3, 4]
        assert [r["recover_result"] for r in restarts[:2]] == ["downgrade", "success"]
        assert restarts[1]["generation"] == {"from": 2, "to": 9}
        assert (restarts[1]["resume_step"], restarts[1]["stages_s"]["stop"]) == (20, 4.0)
        assert restarts[2] == {**record(3), "life": 1}
        assert "restart 2 of phase main" in (await served("why", "demo", "2")).out
