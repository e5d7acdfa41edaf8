"""Everstep in a worker of one's own: each queue gets what it is for, and no other is touched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerConfig

from activities import unfinished
from activities.unfinished import TaskFiles
from everstep import aio
from everstep.client.exit_codes import Failed
from everstep.client.serving import pollers
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from everstep.plugin import WORKFLOWS, EverstepPlugin, opened, plugin_of
from everstep.sandbox import Sandbox
from everstep.worker_settings import WorkerSettings
from tests.support.devserver import DevServer


@workflow.defn
class OfTheTeam:
    """What a team runs beside its jobs."""

    @workflow.run
    async def run(self) -> str:
        return "done"


class Codec(PayloadCodec):
    """A codec, as a team has one that encrypts its payloads."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [*payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [*payloads]


def config(client: Client, queue: str) -> WorkerConfig:
    runner = UnsandboxedWorkflowRunner()
    values = {"client": client, "task_queue": queue, "workflows": [OfTheTeam], "activities": []}
    return cast("WorkerConfig", {**values, "workflow_runner": runner})


async def test_a_worker_gets_what_its_queue_is_for(client: Client) -> None:
    # The activities are only listed, so no backend is needed.
    settings = WorkerSettings(cluster="gpu", concurrency=7)
    plugin = plugin_of(client, cast("Any", object()), settings)
    assert plugin.queues == (names.TASK_QUEUE, names.cluster_queue("gpu"))
    thinking = plugin.configure_worker(config(client, names.TASK_QUEUE))
    assert [*thinking["workflows"]] == [OfTheTeam, *WORKFLOWS]
    assert isinstance(thinking["workflow_runner"], Sandbox)
    acting = plugin.configure_worker(config(client, names.cluster_queue("gpu")))
    assert ([*acting["workflows"]], acting["max_concurrent_activities"]) == ([OfTheTeam], 7)
    assert len(acting["activities"]) > len(thinking["activities"]) > 0
    of_team = config(client, "team")
    assert plugin.configure_worker({**of_team}) == of_team


async def test_the_server_has_a_name_of_each_worker_that_keeps_files(
    client: Client, tmp_path: Path
) -> None:
    """Its process is still found by it. One that a team gave its worker stays."""
    files = TaskFiles(tmp_path)
    plugin = plugin_of(client, cast("Any", object()), WorkerSettings(), task_files=files)
    queue = names.cluster_queue("local")
    identity = plugin.configure_worker(config(client, queue))["identity"]
    assert identity == unfinished.identity(client.identity, tmp_path) != client.identity
    assert pollers.pid_here(identity) == pollers.pid_here(client.identity) == os.getpid()
    configured = cast("WorkerConfig", {**config(client, queue), "identity": "ada"})
    assert plugin.configure_worker(configured)["identity"] == "ada"


async def test_without_a_cluster_only_the_workflows_are_served(client: Client) -> None:
    plugin = EverstepPlugin()
    assert plugin.queues == (names.TASK_QUEUE,)
    of_team = config(client, names.cluster_queue("local"))
    assert plugin.configure_worker({**of_team}) == of_team


@pytest.mark.parametrize("existing", [DataConverter.default, pydantic_data_converter, None])
def test_a_client_of_the_plugin_has_our_converter(existing: DataConverter | None) -> None:
    configured = EverstepPlugin().configure_client(cast("Any", {"data_converter": existing}))
    assert configured["data_converter"] is DATA_CONVERTER


def test_a_converter_that_we_cannot_read_is_refused() -> None:
    """Else payloads would be written without the codec of the team."""
    encrypted = replace(DataConverter.default, payload_codec=Codec())
    with pytest.raises(ValueError, match="a data converter of its own"):
        EverstepPlugin().configure_client(cast("Any", {"data_converter": encrypted}))


async def test_a_cluster_that_cannot_be_opened_is_one_sentence(client: Client) -> None:
    with pytest.raises(Failed, match="nosuch"):
        async with opened(client, WorkerSettings(backend="nosuch")):
            raise AssertionError("there is no such backend")


async def test_a_client_with_another_converter_opens_no_cluster(
    server: DevServer, namespace: str
) -> None:
    """Its workers would write what other workers of the cluster cannot read."""
    client = await Client.connect(server.address, namespace=namespace)
    with pytest.raises(Failed, match=r"connect with data_converter=everstep\.plugin\."):
        async with opened(client, WorkerSettings()):
            raise AssertionError("it has another converter")


async def test_a_team_runs_jobs_and_workflows_of_its_own_in_one_process(
    server: DevServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", namespace)
    monkeypatch.setenv("EVERSTEP_PASS_ENV", "PATH")
    monkeypatch.chdir(tmp_path)
    client = await Client.connect(
        server.address, namespace=namespace, data_converter=DATA_CONVERTER
    )
    async with AsyncExitStack() as stack:
        plugin = await stack.enter_async_context(opened(client))
        for queue in plugin.queues:
            await stack.enter_async_context(Worker(client, task_queue=queue, plugins=[plugin]))
        await stack.enter_async_context(
            Worker(
                client,
                task_queue="team",
                workflows=[OfTheTeam],
                build_id="team",
                # The SDK's own sandbox leaves objects behind that later tests must not touch.
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
        )
        job = await aio.submit(["/bin/sh", "-c", "echo trained"], job_id="theirs")
        result = await client.execute_workflow(OfTheTeam.run, id="own", task_queue="team")
        assert (result, (await job.wait()).state) == ("done", "completed")
    assert not [name for name in os.listdir(tmp_path) if name != "home"]  # noqa: PTH208  # names
