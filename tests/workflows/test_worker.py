"""The worker: what it needs before it starts, and how it leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from temporalio.client import WorkflowHandle
from temporalio.exceptions import ApplicationError

import worker
from everstep.core.errors import PayloadClosed
from everstep.processes import free_port
from tests.support import books
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import StageOfProcesses, document
from tests.support.workerproc import ROOT

WORKER = ("-m", "worker")

DIES_ON_THE_WAY = """
import os, signal, worker
from everstep import plugin

async def dies(*_):
    os.kill({pid}, signal.SIGKILL)

plugin.ensure_janitor = dies
worker.main()
"""
"""A worker whose server, with this process ID, is gone when the worker would begin to poll."""


def logged(error: BaseException, attempt: int) -> tuple[bool, logging.LogRecord]:
    """Whether and how the worker's log reports this end of an activity."""
    record = logging.makeLogRecord(
        {
            "msg": "Completing activity as failed",
            "exc_info": (type(error), error, None),
            "temporal_activity": {
                "activity_type": "stop",
                "workflow_id": "demo",
                "attempt": attempt,
            },
        }
    )
    return worker.in_brief(record), record


def test_a_payload_without_its_key_is_one_line_of_the_log() -> None:
    """The SDK puts a failure of its own around that of an activity alone."""
    closed = PayloadClosed("a payload is encrypted with key a")
    decoding = ApplicationError("Failed decoding arguments")
    decoding.__cause__ = closed
    is_logged, record = logged(decoding, 1)
    line = "stop of demo: PayloadClosed: a payload is encrypted with key a"
    assert (is_logged, record.getMessage(), record.exc_info) == (True, line, None)
    task = logging.makeLogRecord(
        {"msg": "Failed run %s", "args": ("7",), "exc_info": (None, closed, None)}
    )
    assert worker.in_brief(task)
    assert task.getMessage() == "Failed run 7: a payload is encrypted with key a"
    assert task.exc_info is None


def test_a_worker_imports_its_modules_with_few_collections() -> None:
    """At the usual threshold they take a fifth of its start."""
    count = "import gc; before = gc.get_stats()[0]['collections']; import worker; "
    count += "print(gc.get_stats()[0]['collections'] - before)"
    ended = subprocess.run(
        [sys.executable, "-c", count], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 50


def test_a_failure_that_has_a_name_is_one_line_ever_more_seldom() -> None:
    away = ApplicationError("100% of it is away", type="BackendUnavailable")
    lines = {attempt: logged(away, attempt) for attempt in range(1, 17)}
    assert [attempt for attempt, (is_printed, _) in lines.items() if is_printed] == [1, 2, 4, 8, 16]
    _, record = lines[16]
    assert record.getMessage() == "stop of demo: BackendUnavailable: 100% of it is away"
    assert record.exc_info is None


def test_what_nobody_foresaw_keeps_its_traceback_each_time() -> None:
    for attempt in range(1, 4):
        is_printed, record = logged(KeyError("slot"), attempt)
        assert is_printed
        assert record.exc_info is not None


def test_a_step_that_was_told_to_end_is_no_news() -> None:
    assert not logged(asyncio.CancelledError(), 1)[0]


async def run(
    program: tuple[str, str], server: DevServer, namespace: str, home: Path, **env: str
) -> tuple[int, str]:
    """The exit code of a worker's process and what it printed; it must end by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        cwd=ROOT,
        env={
            **os.environ,
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": namespace,
            "EVERSTEP_HOME": str(home),
            **env,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await asyncio.wait_for(process.communicate(), HUNG_S)
    assert process.returncode is not None
    return process.returncode, printed.decode()


class Refused(Protocol):
    """How a worker ends that cannot begin, and what it prints; it needs no process for that."""

    async def __call__(self, server: DevServer, namespace: str, **env: str) -> tuple[int, str]:
        """Start a worker with these settings; return its exit code and output."""


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Refused:
    async def call(server: DevServer, namespace: str, **env: str) -> tuple[int, str]:
        settings = {
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": namespace,
            "EVERSTEP_HOME": str(tmp_path),
        }
        for name, value in {**settings, **env}.items():
            monkeypatch.setenv(name, value)
        try:
            code = await asyncio.wait_for(worker.connect_and_serve(worker.settings()), HUNG_S)
        except SystemExit as ended:
            code = int(str(ended.code))
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


async def test_a_namespace_without_our_search_attributes_is_refused_in_one_line(
    server: DevServer, refused: Refused
) -> None:
    await server.bare_namespace("bare")
    code, printed = await refused(server, "bare")
    assert code == 2
    assert "lacks the search attributes" in printed
    assert "FaultClass" in printed
    assert "Traceback" not in printed


async def test_without_a_server_there_is_one_line_that_says_what_to_try(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    dead_address = f"127.0.0.1:{free_port()}"
    code, printed = await run(WORKER, server, namespace, tmp_path, TEMPORAL_ADDRESS=dead_address)
    (line,) = printed.splitlines()
    assert code == 4
    assert line.startswith(f"no Temporal server answers at {dead_address}; start one")


@pytest.mark.long
async def test_a_server_that_goes_while_the_worker_begins_is_told_at_once(tmp_path: Path) -> None:
    """Our sentence alone is printed: the client tries again and again, and warns of it after some time.

    Only this one has a server that is killed in that moment.
    """
    async with await DevServer.start() as server:
        program = ("-c", DIES_ON_THE_WAY.format(pid=server.pid))
        code, printed = await run(program, server, "default", tmp_path)
    assert code == 4, printed
    (line,) = printed.splitlines()
    assert line.startswith(f"no Temporal server answers at {server.address}; ")


OLD_BOOKS = {"nodes (name TEXT)": "table nodes has no", "jobs (id TEXT)": "no such column: body"}


@pytest.mark.parametrize("table", OLD_BOOKS)
async def test_books_of_another_version_are_named_in_one_line(
    server: DevServer, namespace: str, refused: Refused, tmp_path: Path, table: str
) -> None:
    books.make_table(tmp_path, table)
    code, printed = await refused(server, namespace)
    (line,) = printed.splitlines()
    assert code == 4
    assert line.startswith(f"the cluster cannot be opened: {tmp_path}/local.db: {OLD_BOOKS[table]}")


async def test_a_namespace_that_is_not_there_is_named_in_one_line(
    server: DevServer, refused: Refused
) -> None:
    code, printed = await refused(server, "nowhere")
    (line,) = printed.splitlines()
    assert code == 4
    assert line.startswith("the server has no namespace nowhere; set TEMPORAL_NAMESPACE")


async def test_a_backend_that_is_not_there_is_refused_in_one_line(
    server: DevServer, namespace: str, refused: Refused
) -> None:
    code, printed = await refused(server, namespace, EVERSTEP_BACKEND="fkae")
    (line,) = printed.splitlines()
    assert code == 2
    assert line.endswith("there is no 'fkae'; try one of fake, kubernetes, local")


async def test_a_kubernetes_cluster_that_cannot_be_reached_is_named_in_one_line(
    server: DevServer, namespace: str, refused: Refused, tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "kubeconfig")
    code, printed = await refused(
        server, namespace, EVERSTEP_BACKEND="kubernetes", EVERSTEP_KUBECONFIG=nowhere
    )
    (line,) = printed.splitlines()
    assert code == 4
    assert "no way to the API server" in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVERSTEP_TIME_SCALE", "fast"),
        ("EVERSTEP_TIME_SCALE", "0"),
        ("EVERSTEP_ORPHAN_S", "nan"),
        ("EVERSTEP_ORPHAN_S", "-1"),
        ("EVERSTEP_NODES", "0"),
        ("EVERSTEP_DEVICES", "-1"),
        ("EVERSTEP_CONCURRENCY", "0"),
        ("EVERSTEP_PRECHECK__ROOT_GB", "much"),
        ("EVERSTEP_PRECHECK", '{"within_s": -1}'),
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused_in_one_line(
    server: DevServer, namespace: str, refused: Refused, name: str, value: str
) -> None:
    code, printed = await refused(server, namespace, **{name: value})
    assert code == 2
    assert printed.startswith(f"{name} is ")
    assert "Traceback" not in printed


async def test_what_is_no_address_is_refused_in_one_line(
    server: DevServer, namespace: str, refused: Refused
) -> None:
    code, printed = await refused(server, namespace, EVERSTEP_WEBHOOK_URL="example.com")
    assert code == 2
    assert printed.startswith("EVERSTEP_WEBHOOK_URL is 'example.com': ")
    assert "Traceback" not in printed


async def test_a_token_that_makes_no_sense_is_refused_without_being_shown(
    server: DevServer, namespace: str, refused: Refused
) -> None:
    code, printed = await refused(server, namespace, EVERSTEP_WEBHOOK_TOKEN="s3cret\nX: y")
    assert code == 2
    assert printed.startswith("EVERSTEP_WEBHOOK_TOKEN is not shown: ")
    assert "s3cret" not in printed


@pytest.mark.parametrize(
    "row",
    [
        ("EVERSTEP_WEBHOOK_SECRET", "s3cret", "is not shown: "),
        ("EVERSTEP_WEBHOOK_TEMPLATE", "slakc", "give one of slack, mattermost, discord, teams"),
        ("EVERSTEP_SECRETS_DIR", "/nowhere", "there is no such folder"),
    ],
)
async def test_a_setting_of_messages_that_makes_no_sense_is_refused_in_one_line(
    server: DevServer, namespace: str, refused: Refused, row: tuple[str, str, str]
) -> None:
    name, value, printed_why = row
    code, printed = await refused(server, namespace, **{name: value})
    (line,) = printed.splitlines()
    assert (code, line.startswith(f"{name} is ")) == (2, True)
    assert printed_why in line
    assert "s3cret" not in printed


async def test_a_token_that_others_could_read_on_the_way_is_refused(
    server: DevServer, namespace: str, refused: Refused
) -> None:
    variables = {
        "EVERSTEP_WEBHOOK_URL": "http://hooks.example/",
        "EVERSTEP_WEBHOOK_TOKEN": "s3cret",
    }
    code, printed = await refused(server, namespace, **variables)
    assert code == 2
    assert printed.startswith("EVERSTEP_WEBHOOK_TOKEN is not shown: ")
    assert "give EVERSTEP_WEBHOOK_URL an https address" in printed
    assert "s3cret" not in printed


async def test_a_worker_that_is_asked_to_leave_hands_its_watch_over_and_exits_0(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with StageOfProcesses(server, namespace, tmp_path) as stage:
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


async def has_beaten(job: WorkflowHandle[Any, Any]) -> bool:
    """Whether the heartbeats of its monitor show something; the worker sends one after 0.7 s."""
    pending = (await job.describe()).raw_description.pending_activities
    return any(p.activity_type.name == "monitor" and p.heartbeat_details.payloads for p in pending)


@pytest.mark.long
async def test_a_worker_that_watches_a_running_job_after_another_is_one_event_of_the_job(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one counts the events that changes of workers leave."""
    async with StageOfProcesses(server, namespace, tmp_path) as stage:
        await stage.admin.hold("observe", nth=6)
        job = await stage.submit(document())
        await stage.admin.wait_held()
        async with asyncio.timeout(HUNG_S):
            while not await has_beaten(job):
                await asyncio.sleep(0.05)
        stage.worker.kill9()
        async with stage.new_worker("successor") as successor:
            await stage.admin.release()
            report = await job.result(rpc_timeout=timedelta(seconds=60))
            events = [event["message"] for event in await job.query("events")]
        assert report["status"] == "Completed"
        pids = successor.pid, stage.worker.pid
        names = tuple(f"worker {pid}@{socket.gethostname()}" for pid in pids)
        changed = f"{names[0]} watches the job, which {names[1]} watched before"
        assert events.count(changed) == 1
