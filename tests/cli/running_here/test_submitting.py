"""`everstep submit` against a real server, with a stand-in for the workflows."""

from __future__ import annotations

import asyncio
import json

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from everstep.client.jobs.found_job import find, look_up
from tests.cli.conftest import AsyncCli, Cli, ended, submitted, until
from tests.cli.standin import STATE, document, working
from tests.support.devserver import DevServer


async def test_submit_starts_the_job_once(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_UI", "localhost:8233/")
    submission = (await submitted(served, document(phases=("warmup", "main")), "--json")).json
    description = await client.get_workflow_handle("demo").describe()
    assert [note["field"] for note in submission.pop("notes")] == ["spec.command"], (
        "no train.py here"
    )
    assert submission == {
        "id": "demo",
        "run_id": description.run_id,
        "ui": f"http://localhost:8233/namespaces/{client.namespace}/workflows/demo",
        "was_used": False,
    }
    assert (description.workflow_type, description.task_queue) == ("TrainingJob", "everstep")
    assert await description.static_summary() == "phases warmup, main"
    config = description.raw_description.execution_config
    assert config.default_workflow_task_timeout.seconds == 3

    again = await submitted(served, document())
    assert again.code == 2
    assert "there is a job demo already" in again.sentence
    assert "--id" in again.sentence
    assert "--again" in again.sentence


async def test_a_namespace_without_our_search_attributes_takes_no_job(
    served: AsyncCli, server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.bare_namespace("bare-submit")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "bare-submit")
    refused = await submitted(served, document())
    assert refused.code == 2
    assert "namespace bare-submit lacks the search attributes FaultClass" in refused.sentence


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
            end = await submitted(served, document(state), "--again")
            assert end.code == 0
            assert f"checkpoint, which `everstep status {state}` names" in end.out
        await client.get_workflow_handle("failed").terminate()
        assert (await submitted(served, document("failed"), "--again")).code == 0


async def test_again_waits_for_a_job_that_has_stopped_to_close(
    served: AsyncCli, client: Client
) -> None:
    body = document(end="stopped")
    body["metadata"]["labels"]["closes"] = "late"
    async with working(client):
        await submitted(served, body)
        handle = client.get_workflow_handle("demo")

        async def has_stopped() -> bool:
            return (await handle.describe()).typed_search_attributes.get(STATE) == "stopped"

        await until(has_stopped)
        run_id = (await submitted(served, document(), "--again", "--json")).json["run_id"]
        newest = await handle.describe()
        assert (newest.run_id, newest.status) == (run_id, WorkflowExecutionStatus.RUNNING)


async def test_again_is_a_plain_submit_where_nothing_was(served: AsyncCli) -> None:
    end = await submitted(served, document(), "--again")
    assert (end.code, "checkpoint" in end.out) == (0, False)


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


async def test_what_the_backend_of_the_document_refuses_is_not_sent(
    served: AsyncCli, client: Client
) -> None:
    body = document()
    body["spec"] |= {"cluster": "gpu", "image": "train:1", "model_dir": "out"}
    refused = await submitted(served, body)
    assert refused.code == 2
    assert refused.sentence.startswith("-: spec.model_dir: is relative")
    assert await look_up(client, "demo") is None


async def test_a_document_is_submitted_to_another_cluster(served: AsyncCli, client: Client) -> None:
    body = document()
    body["spec"] |= {"image": "train:1", "model_dir": "/storage/out"}
    assert (await submitted(served, body, "--cluster", "gpu")).code == 0
    spec = (await (await find(client, "demo")).document())["spec"]
    assert spec["cluster"] == "gpu"
    assert "workdir" not in spec, "a folder of this machine means nothing there"


async def test_the_log_pattern_of_the_command_line_is_that_of_every_phase(
    served: AsyncCli, client: Client
) -> None:
    body = document(phases=("warmup", "main"))
    body["spec"]["phases"][1]["progress"] = {"log_pattern": "hf", "loss_pattern": "none"}
    assert (await submitted(served, body, "--log-pattern", "json:train/step")).code == 0
    spec = (await (await find(client, "demo")).document())["spec"]
    assert spec["progress"] == {"log_pattern": "json:train/step"}
    assert spec["phases"][1]["progress"] == {
        "log_pattern": "json:train/step",
        "loss_pattern": "none",
    }


async def test_a_log_pattern_that_finds_no_step_is_not_sent(
    served: AsyncCli, client: Client
) -> None:
    refused = await submitted(served, document(), "--log-pattern", r"it (\d+)")
    assert refused.code == 2
    assert "log_pattern: must have a group named step" in refused.sentence
    assert await look_up(client, "demo") is None
