"""Commands about jobs against a real server, with a stand-in for the workflows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from everstep.cli.connection import plainly
from everstep.cli.exits import Failed
from everstep.converter import DATA_CONVERTER
from tests.cli.conftest import AsyncCli, Cli, Ended
from tests.cli.standin import JOB, document, record, working
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S

STATUS_KEYS = {
    "id",
    "state",
    "phase",
    "phases",
    "generation",
    "step",
    "checkpoint_step",
    "waiting_for",
    "recovery",
    "pods",
    "budgets",
    "series",
    "restarts",
    "reschedules",
    "isolated_nodes",
    "ui",
}


@pytest.fixture
async def client(server: DevServer, namespace: str) -> Client:
    return await server.connect(namespace, data_converter=DATA_CONVERTER)


async def submitted(served: AsyncCli, body: dict[str, Any], *options: str) -> Ended:
    return await served("submit", "-", *options, stdin=json.dumps(body).encode())


async def ended(served: AsyncCli, client: Client, end: str, name: str = "demo") -> None:
    """A job of that name that has come to that end."""
    assert (await submitted(served, document(name, end=end))).code == 0
    try:
        await client.get_workflow_handle(name).result()
    except WorkflowFailureError:
        assert end in ("failed", "invalid")


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    """Visibility follows a little later."""
    async with asyncio.timeout(HUNG_S):
        while not await claim():
            await asyncio.sleep(0.05)


# -- no server, no worker, no job ---------------------------------------------------------------

ASKING = [
    ("list",),
    ("status", "demo"),
    ("restarts", "demo"),
    ("events", "demo"),
    ("why", "demo"),
    ("nodes",),
    ("release", "gpu-07"),
    ("pause", "demo"),
]


@pytest.mark.parametrize("argv", ASKING, ids=lambda argv: argv[0])
def test_without_a_server_a_command_says_what_to_try(cli: Cli, argv: tuple[str, ...]) -> None:
    end = cli(*argv)
    assert end.code == 4
    assert "temporal server start-dev" in end.sentence
    assert "TEMPORAL_ADDRESS" in end.sentence


def test_what_a_server_of_this_machine_knew_is_served_by_dev(cli: Cli, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "temporal.db").touch()
    for command in ("status", "restarts", "why"):
        end = cli(command, "demo")
        assert end.code == 4
        assert f"`everstep dev` serves what is in {home}" in end.sentence
        assert "start-dev" not in end.sentence


async def test_it_is_the_server_that_was_asked_that_does_not_answer(
    cli: Cli, client: Client, server: DevServer
) -> None:
    with (
        pytest.raises(Failed, match=f"no Temporal server answers at {server.address};"),
        plainly(client),
    ):
        raise RPCError("disk full", RPCStatusCode.UNAVAILABLE, b"")


def test_a_profile_that_cannot_be_read_is_wrong_usage(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "nobody-made-this")
    end = cli("list")
    assert end.code == 2
    assert "profile" in end.sentence


async def test_a_namespace_that_is_not_there_is_named(
    served: AsyncCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")
    for argv in (("list",), ("status", "demo"), ("nodes",)):
        end = await served(*argv)
        assert end.code == 4
        assert "no namespace nowhere" in end.sentence


@pytest.mark.parametrize(
    "command", ["status", "restarts", "events", "why", "logs", "pause", "resume", "stop"]
)
async def test_a_job_that_is_not_there_is_3(served: AsyncCli, command: str) -> None:
    end = await served(command, "ghost")
    assert end.code == 3
    assert "there is no job ghost" in end.sentence


async def test_a_job_that_printed_nothing_here_is_not_said_to_be_none(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted(served, document())
    end = await served("logs", "demo")
    assert end.code == 3
    assert end.sentence.startswith("demo left no log in ")
    monkeypatch.setenv("EVERSTEP_BACKEND", "fake")
    end = await served("logs", "demo", "--rank", "1")
    assert end.code == 3
    assert end.sentence == (
        "rank 1 of demo left no log: the ranks of a fake cluster are made up and print nothing"
    )


async def test_a_workflow_that_is_no_job_is_not_taken_for_one(
    served: AsyncCli, client: Client
) -> None:
    await client.start_workflow(
        "Recovery", {}, id="demo/main/recovery-1-pod-node-n2", task_queue="everstep"
    )
    end = await served("status", "demo/main/recovery-1-pod-node-n2")
    assert end.code == 3
    assert "is a Recovery and no job" in end.sentence


@pytest.mark.parametrize("command", ["restarts", "why", "pause"])
async def test_without_a_worker_a_running_job_cannot_answer(
    served: AsyncCli, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    await submitted(served, document())
    end = await served(command, "demo")
    assert end.code == 4
    assert "no worker answered within 0.5 s" in end.sentence


@pytest.mark.parametrize("command", ["status", "pause"])
async def test_a_worker_that_fails_at_a_job_is_not_taken_for_none(
    served: AsyncCli, client: Client, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")

    async def is_failing() -> bool:
        seen = await client.get_workflow_handle("demo").describe()
        return seen.raw_description.pending_workflow_task.attempt > 1

    async with working(client):
        await submitted(served, document(end="broken"))
        await until(is_failing)
        end = await served(command, "demo")
    assert end.code == 4
    assert "no worker" not in end.sentence
    assert "its worker fails at it again and again" in end.sentence
    assert "a worker with a bug" in end.sentence
    assert "`temporal workflow show -w demo`" in end.sentence


async def test_a_worker_that_was_killed_at_a_job_does_not_fail_at_it(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    await submitted(served, document())
    await client.workflow_service.poll_workflow_task_queue(  # taken, and never answered
        PollWorkflowTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name="everstep"), identity="killed"
        )
    )

    async def is_given_out_again() -> bool:
        seen = await client.get_workflow_handle("demo").describe()
        return seen.raw_description.pending_workflow_task.attempt > 1

    await until(is_given_out_again)
    end = await served("restarts", "demo")
    assert (end.code, "no worker answered" in end.sentence) == (4, True)


# -- submit -------------------------------------------------------------------------------------


async def test_submit_starts_the_job_once(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_UI", "localhost:8233/")
    told = (await submitted(served, document(phases=("warmup", "main")), "--json")).json
    seen = await client.get_workflow_handle("demo").describe()
    assert [note["field"] for note in told.pop("notes")] == ["spec.command"], "no train.py here"
    assert told == {
        "id": "demo",
        "run_id": seen.run_id,
        "ui": f"http://localhost:8233/namespaces/{client.namespace}/workflows/demo",
    }
    assert (seen.workflow_type, seen.task_queue) == ("TrainingJob", "everstep")
    assert await seen.static_summary() == "phases warmup, main"
    config = seen.raw_description.execution_config
    assert config.default_workflow_task_timeout.seconds == 3

    again = await submitted(served, document())
    assert again.code == 2
    assert "there is a job demo already" in again.sentence
    assert "--id" in again.sentence
    assert "--again" in again.sentence


async def test_a_wrong_document_is_not_sent(served: AsyncCli, client: Client) -> None:
    body = {**document(), "spec": {"nodes": 1}}
    end = await submitted(served, body)
    assert end.code == 2
    assert "command" in end.sentence
    assert (await served("status", "demo")).code == 3


async def test_a_document_that_is_too_large_for_this_server_ends_in_a_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = document()
    body["spec"]["env"] = {"DATA": "x" * 20_000}
    limits = {"limit.blobSize.error": "10000", "limit.blobSize.warn": "5000"}
    async with await DevServer.start(settings=limits) as strict:
        monkeypatch.setenv("TEMPORAL_ADDRESS", strict.address)
        end = await asyncio.to_thread(cli, "submit", "-", stdin=json.dumps(body).encode())
    assert end.code == 2
    assert end.sentence.startswith("the document is larger than this server takes; keep data in")


async def test_an_id_of_its_own_wins_over_the_name(served: AsyncCli, client: Client) -> None:
    assert (await submitted(served, document(), "--id", "nightly-7")).code == 0
    assert (await client.get_workflow_handle("nightly-7").describe()).id == "nightly-7"


@pytest.mark.parametrize("wrong", ["quarantine/local", "", "a b", "-a"])
async def test_an_id_that_cannot_be_a_directory_is_refused(served: AsyncCli, wrong: str) -> None:
    end = await submitted(served, document(), f"--id={wrong}")
    assert end.code == 2


async def test_again_refuses_a_running_job(served: AsyncCli) -> None:
    await submitted(served, document())
    end = await submitted(served, document(), "--again")
    assert end.code == 2
    assert "demo is running" in end.sentence


async def test_again_refuses_a_completed_job_and_takes_over_the_others(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await ended(served, client, "completed")
        end = await submitted(served, document(), "--again")
        assert end.code == 2
        assert "demo is completed" in end.sentence
        assert "--id" in end.sentence
        for state in ("stopped", "failed"):
            await ended(served, client, state, name=state)
            assert (await submitted(served, document(state))).code == 2
            assert (await submitted(served, document(state), "--again")).code == 0
        await client.get_workflow_handle("failed").terminate()
        assert (await submitted(served, document("failed"), "--again")).code == 0


async def test_again_is_a_plain_submit_where_nothing_was(served: AsyncCli) -> None:
    assert (await submitted(served, document(), "--again")).code == 0


async def test_from_phase_begins_there_and_takes_over_the_id(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await ended(served, client, "failed")
        body = document(end="completed", phases=("warmup", "main"))
        end = await submitted(served, body, "--from-phase", "nothing")
        assert end.code == 2
        assert "there is warmup, main" in end.sentence
        assert (await submitted(served, body, "--from-phase", "main")).code == 0
        report = await client.get_workflow_handle("demo").result()
        assert report["start_phase"] == "main"


# -- a job that runs ----------------------------------------------------------------------------


async def test_status_has_the_pinned_keys_and_the_newest_step(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_UI_ADDRESS", "https://ui")

    async def is_watched() -> bool:
        seen = await client.get_workflow_handle("demo").describe()
        return any(p.HasField("heartbeat_details") for p in seen.raw_description.pending_activities)

    async with working(client):
        await submitted(served, document())
        await until(is_watched)
        told = (await served("status", "demo", "--json")).json
        page = (await served("status", "demo")).out
    assert told.keys() >= STATUS_KEYS
    assert (told["step"], told["checkpoint_step"]) == (57, 50)  # the query alone says 41, 40
    assert told["ui"] == f"https://ui/namespaces/{client.namespace}/workflows/demo"
    assert "gpu-01" in page
    assert "pod 2 of 3" in page


async def test_restarts_and_why_are_the_answers_of_the_job(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await submitted(served, document())
        assert (await served("restarts", "demo", "--json")).json == [
            record(3),
            record(4, result="recovering"),
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
        assert "accepted" in (await served("pause", "demo", "--reason", "new switch")).out
        refused = await served("pause", "demo")
        assert refused.code == 2
        assert refused.sentence == "demo refuses: the job is paused already"
        assert (await served("resume", "demo", "--json")).json["accepted"] is True
        await served("restart", "demo", "--level", "pod", "--reason", "tired")
        told = await client.get_workflow_handle("demo").query("told")
        assert (await served("stop", "demo", "--grace-s", "2.5")).code == 0
        await client.get_workflow_handle("demo").result()
        late = await served("pause", "demo")
    ids = [command.pop("id") for command in told]
    assert len(set(ids)) == len(ids) == 3
    assert told == [
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
    told = (await served("status", "demo", "--json")).json
    assert told.keys() >= STATUS_KEYS
    assert (told["state"], told["reason"]) == (state, "because")
    assert (await served("restarts", "demo", "--json")).json == [record(1), record(2)]
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
    told = (await served("status", "demo", "--json")).json
    assert told.keys() >= STATUS_KEYS
    assert (told["state"], told["reason"]) == ("failed", "spec.nodes: must be a whole number")
    shown = (await served("status", "demo", "--modelarts")).json["status"]
    assert (shown["phase"], shown["secondary_phase"]) == ("Failed", "CreateFailed")
    assert [r["end_reason"] for r in shown["running_records"]] == [told["reason"]]
    (event,) = (await served("events", "demo", "--json")).json
    assert (event["level"], event["event"]) == ("Error", "JobFailed")
    assert event["message"] == f"failed: {told['reason']}"
    assert (await served("restarts", "demo", "--json")).json == []
    assert "spec.nodes" in (await served("why", "demo")).out


async def test_a_job_that_was_terminated_is_lost_to_modelarts(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await submitted(served, document())
        await client.get_workflow_handle("demo").terminate()
    shown = (await served("status", "demo", "--modelarts")).json
    assert (shown["status"]["phase"], shown["status"]["secondary_phase"]) == ("Abnormal", "Lost")
    begun = (await client.get_workflow_handle("demo").describe()).start_time
    assert shown["metadata"]["create_time"] == int(begun.timestamp() * 1000)
    (event,) = (await served("events", "demo", "--json")).json
    assert event["message"].startswith("stopped: terminated")


async def test_a_terminated_job_is_stopped(served: AsyncCli, client: Client) -> None:
    await submitted(served, document())
    await client.get_workflow_handle("demo").terminate(reason="wrong cluster")
    told = (await served("status", "demo", "--json")).json
    assert told.keys() >= STATUS_KEYS
    assert (told["state"], told["reason"]) == ("stopped", "terminated: wrong cluster")
    assert "terminated: wrong cluster" in (await served("status", "demo")).out


async def test_all_restarts_include_those_the_job_forgot(served: AsyncCli, client: Client) -> None:
    async def old(n: int, outcome: dict[str, Any], job: str = "demo") -> None:
        row = await client.start_workflow(
            "Recovery",
            outcome,
            id=f"{job}/main/recovery-{n}-pod-node-n2",
            task_queue="everstep",
            memo={"record": record(n, result="recovering")},
            search_attributes=TypedSearchAttributes([SearchAttributePair(JOB, job)]),
        )
        with suppress(WorkflowFailureError):
            await row.result()

    done = {
        "result": "success",
        "was_started": True,
        "generation": 9,
        "stages_s": {"stop": 4.0},
        "resume": {"step": 20},
    }

    async def are_listed() -> bool:
        rows = await client.count_workflows("WorkflowType = 'Recovery'")
        return rows.count == 5

    async with working(client):
        await old(1, done)  # of an earlier job of this name
        await submitted(served, document())
        await old(1, {"result": "failed"})
        await old(2, done)
        await old(3, {"result": "failed"})  # known better by the job itself
        await old(2, done, job="other")
        await until(are_listed)
        told = (await served("restarts", "demo", "--all", "--json")).json
        assert [r["n"] for r in told] == [1, 2, 3, 4]
        assert [r["recover_result"] for r in told[:2]] == ["downgrade", "success"]
        assert told[1]["generation"] == {"from": 2, "to": 9}
        assert (told[1]["resume_step"], told[1]["stages_s"]["stop"]) == (20, 4.0)
        assert told[2] == record(3)
        assert "restart 2 of phase main" in (await served("why", "demo", "2")).out
