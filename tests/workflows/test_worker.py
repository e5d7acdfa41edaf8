"""The worker as a process: what it needs before it starts, and how it leaves."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import Stage, document
from tests.support.workerproc import ROOT

WORKER = ("-m", "worker")

DIES_ON_THE_WAY = """
import os, signal, worker

async def dies(*_):
    os.kill({pid}, signal.SIGKILL)

worker.ensure_janitor = dies
worker.main()
"""
"""A worker whose server, with this process ID, is gone when the worker would begin to poll."""


async def run_worker(server: DevServer, namespace: str, **env: str) -> tuple[int, str]:
    return await run(WORKER, server, namespace, **env)


async def run(
    program: tuple[str, str], server: DevServer, namespace: str, **env: str
) -> tuple[int, str]:
    """A worker's exit code and what it printed; it must end by itself. Its home is new, unless said."""
    with tempfile.TemporaryDirectory() as home:
        return await run_at(home, program, server, namespace, **env)


async def run_at(
    home: str, program: tuple[str, str], server: DevServer, namespace: str, **env: str
) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        cwd=ROOT,
        env={
            **os.environ,
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": namespace,
            "EVERSTEP_HOME": home,
            **env,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await asyncio.wait_for(process.communicate(), HUNG_S)
    assert process.returncode is not None
    return process.returncode, printed.decode()


async def test_a_namespace_without_our_search_attributes_is_refused_in_one_line(
    server: DevServer,
) -> None:
    client = await server.connect()
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace="bare",
            workflow_execution_retention_period=Duration(seconds=86_400),
        )
    )
    code, printed = await run_worker(server, "bare")
    assert code == 2
    assert "lacks the search attributes" in printed
    assert "FaultClass" in printed
    assert "Traceback" not in printed


async def test_without_a_server_there_is_one_line_that_says_what_to_try(
    server: DevServer, namespace: str
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    code, printed = await run_worker(server, namespace, TEMPORAL_ADDRESS=nobody)
    (line,) = printed.splitlines()
    assert code == 4
    assert line.startswith(f"no Temporal server answers at {nobody}; start one")


@pytest.mark.long
async def test_a_server_that_goes_while_the_worker_begins_is_not_taken_for_a_ready_worker() -> None:
    """The client asks for half a minute and warns of it; then the worker ends with our sentence."""
    async with await DevServer.start() as server:
        program = ("-c", DIES_ON_THE_WAY.format(pid=server.pid))
        code, printed = await run(program, server, "default")
    assert code == 4, printed
    assert printed.splitlines()[-1].startswith(f"no Temporal server answers at {server.address}; ")
    assert "ready" not in printed
    assert "Traceback" not in printed


async def test_books_of_another_version_are_named_in_one_line(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "local.db") as db:
        db.execute("CREATE TABLE nodes (name TEXT)")
    code, printed = await run_at(str(tmp_path), WORKER, server, namespace)
    (line,) = printed.splitlines()
    assert code == 4
    assert line.startswith(f"the cluster cannot be opened: {tmp_path}/local.db: table nodes has no")


async def test_a_namespace_that_is_not_there_is_named_in_one_line(server: DevServer) -> None:
    code, printed = await run_worker(server, "nowhere")
    (line,) = printed.splitlines()
    assert code == 4
    assert line.startswith("the server has no namespace nowhere; set TEMPORAL_NAMESPACE")


@pytest.mark.parametrize("name", ["fkae", "kubernetes"])
async def test_a_backend_that_is_not_there_is_refused_in_one_line(
    server: DevServer, namespace: str, name: str
) -> None:
    code, printed = await run_worker(server, namespace, EVERSTEP_BACKEND=name)
    (line,) = printed.splitlines()
    assert code == 2
    assert line.endswith(f"there is no '{name}'; try one of fake, local")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVERSTEP_TIME_SCALE", "fast"),
        *(
            pytest.param(name, value, marks=pytest.mark.long)  # each begins a worker
            for name, value in (
                ("EVERSTEP_TIME_SCALE", "0"),
                ("EVERSTEP_ORPHAN_S", "nan"),
                ("EVERSTEP_ORPHAN_S", "-1"),
                ("EVERSTEP_NODES", "0"),
                ("EVERSTEP_DEVICES", "-1"),
                ("EVERSTEP_CONCURRENCY", "0"),
                ("EVERSTEP_PRECHECK__ROOT_GB", "much"),
                ("EVERSTEP_PRECHECK", '{"within_s": -1}'),
            )
        ),
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused_in_one_line(
    server: DevServer, namespace: str, name: str, value: str
) -> None:
    code, printed = await run_worker(server, namespace, **{name: value})
    assert code == 2
    assert printed.startswith(f"{name} is ")
    assert "Traceback" not in printed


async def test_what_is_no_address_is_refused_in_one_line(server: DevServer, namespace: str) -> None:
    code, printed = await run_worker(server, namespace, EVERSTEP_WEBHOOK_URL="example.com")
    assert code == 2
    assert printed.startswith("EVERSTEP_WEBHOOK_URL is 'example.com': ")
    assert "Traceback" not in printed


async def test_a_token_that_makes_no_sense_is_refused_without_being_shown(
    server: DevServer, namespace: str
) -> None:
    code, printed = await run_worker(server, namespace, EVERSTEP_WEBHOOK_TOKEN="s3cret\nX: y")
    assert code == 2
    assert printed.startswith("EVERSTEP_WEBHOOK_TOKEN is not shown: ")
    assert "s3cret" not in printed


async def test_a_token_that_others_could_read_on_the_way_is_refused(
    server: DevServer, namespace: str
) -> None:
    given = {"EVERSTEP_WEBHOOK_URL": "http://hooks.example/", "EVERSTEP_WEBHOOK_TOKEN": "s3cret"}
    code, printed = await run_worker(server, namespace, **given)
    assert code == 2
    assert printed.startswith("EVERSTEP_WEBHOOK_TOKEN is not shown: ")
    assert "give EVERSTEP_WEBHOOK_URL an https address" in printed
    assert "s3cret" not in printed


async def test_a_worker_that_is_asked_to_leave_hands_its_watch_over_and_exits_0(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.hold("observe", nth=4, when="before")
        job = await stage.submit(document())
        await stage.admin.wait_held()
        leaving = asyncio.ensure_future(stage.worker.terminate())
        async with stage.new_worker("successor"):
            assert await leaving == 0
            await stage.admin.release()
            report = await job.result(rpc_timeout=timedelta(seconds=60))
        assert report["status"] == "Completed"
        assert report["phases"][0]["restarts"] == []
        assert "Traceback" not in stage.worker.log.read_text()
