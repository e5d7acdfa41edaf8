"""Commands about jobs where no server, no worker or no job is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.client import connection
from everstep.client.connection import rpc_errors_as_failed
from everstep.client.exit_codes import Failed
from everstep.client.jobs.found_job import look_up
from tests.cli.conftest import AsyncCli, Cli, Ended, submitted, until
from tests.cli.standin import document, working
from tests.support.devserver import DevServer

ASKING = [
    ("list",),
    ("status", "demo"),
    ("restarts", "demo"),
    ("events", "demo"),
    ("why", "demo"),
    ("nodes",),
    ("isolate", "gpu-07"),
    ("release", "gpu-07"),
    ("pause", "demo"),
]


@pytest.mark.parametrize("argv", ASKING, ids=lambda argv: argv[0])
def test_without_a_server_a_command_says_what_to_try(cli: Cli, argv: tuple[str, ...]) -> None:
    end = cli(*argv)
    assert end.code == 4
    assert "`everstep dev`" in end.sentence
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
        rpc_errors_as_failed(client),
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
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")  # no worker is there to say what it waits for
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


async def test_an_id_that_is_no_text_is_wrong_usage(served: AsyncCli) -> None:
    """Bytes of a command line that are no UTF-8 cannot be sent to the server."""
    for command in ("status", "pause", "logs"):
        end = await served(command, "a\udcff")
        assert end.code == 2
        assert end.sentence == r"a\udcff is no text in UTF-8"


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


async def is_given_out_again(client: Client) -> bool:
    description = await client.get_workflow_handle("demo").describe()
    return description.raw_description.pending_workflow_task.attempt > 1


async def end_of_failing_worker(
    served: AsyncCli, client: Client, command: str, end: str, **of_worker: bool
) -> Ended:
    """How the command ends beside a worker that fails at each task of the job."""
    async with working(client, **of_worker):
        await submitted(served, document(end=end))
        await until(partial(is_given_out_again, client))
        return await served(command, "demo")


@pytest.mark.parametrize("command", ["status", "pause"])
async def test_a_worker_that_fails_at_a_job_is_not_taken_for_none(
    served: AsyncCli, client: Client, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    end = await end_of_failing_worker(served, client, command, "broken")
    assert end.code == 4
    assert "no worker" not in end.sentence
    assert "its worker fails at it again and again" in end.sentence
    assert "a worker with a bug" in end.sentence
    assert "`temporal workflow show -w demo`" in end.sentence


async def test_a_run_that_no_replay_carries_on_says_how_it_gets_a_new_one(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    end = await end_of_failing_worker(served, client, "status", "unreplayable", is_forgetful=True)
    assert end.code == 4
    assert "no worker of this version can go on with this run" in end.sentence
    assert "`temporal workflow reset -w demo -t FirstWorkflowTask" in end.sentence


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
    await until(partial(is_given_out_again, client))
    end = await served("restarts", "demo")
    assert (end.code, "no worker answered" in end.sentence) == (4, True)


async def test_a_server_that_is_lost_meanwhile_is_named_by_us_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The SDK logs its attempts in colours, between the lines of a watch."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    async with await DevServer.start() as server:
        client = await connection.client(server.address)
        server.kill()
        expected = pytest.raises(Failed, match="no Temporal server answers")
        with expected, rpc_errors_as_failed(client):
            await look_up(client, "demo")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
