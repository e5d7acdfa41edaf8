"""The ground the other tests stand on: a real server, namespaces of one's own, children that die."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.support import at_work
from tests.support.child import Child, ChildFailed
from tests.support.costs import Costs
from tests.support.devserver import DevServer
from tests.support.hook import hooked
from tests.support.patience import HUNG_S
from tests.support.sources import parsed
from tests.support.wire import Wire

ROOT = Path(__file__).resolve().parents[1]
JOB = SearchAttributeKey.for_keyword("TrainJob")
RESTARTS = SearchAttributeKey.for_int("Restarts")
NODES = SearchAttributeKey.for_keyword_list("FaultNodes")

PRINTS_AND_WAITS = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]


@workflow.defn
class Labelled:
    """Puts its argument where `list` can find it, waits a moment on the server, and returns it."""

    @workflow.run
    async def run(self, job: str) -> str:
        workflow.upsert_search_attributes(
            [JOB.value_set(job), RESTARTS.value_set(3), NODES.value_set(["n1", "n2"])]
        )
        await workflow.sleep(0.05)
        return job


async def run_labelled(client: Client, job: str) -> WorkflowHandle[Labelled, str]:
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue="q", workflows=[Labelled], workflow_runner=runner):
        handle = await client.start_workflow(Labelled.run, job, id="same-id", task_queue="q")
        assert await handle.result() == job
    return handle


async def ids(client: Client, query: str) -> list[str]:
    return [row.id async for row in client.list_workflows(query)]


async def jobs_seen(client: Client) -> list[str | None]:
    return [row.typed_search_attributes.get(JOB) async for row in client.list_workflows()]


async def test_two_namespaces_of_one_server_share_nothing(server: DevServer) -> None:
    clients = [await server.connect(await server.new_namespace()) for _ in range(2)]
    await asyncio.gather(*(run_labelled(c, f"job-{i}") for i, c in enumerate(clients)))
    assert [await jobs_seen(c) for c in clients] == [["job-0"], ["job-1"]]


async def test_a_new_namespace_finds_workflows_by_our_search_attributes(client: Client) -> None:
    await run_labelled(client, "demo")
    assert await ids(client, "TrainJob='demo' AND Restarts=3 AND FaultNodes='n2'") == ["same-id"]
    assert await ids(client, "FaultNodes='n3'") == []


async def test_a_namespace_is_named_after_its_test(namespace: str) -> None:
    assert namespace.startswith("test-a-namespace-is-named-after-its-test-")


async def test_short_timers_are_short(client: Client) -> None:
    """The stock server rounds the 50 ms up to a second, each time; a busy machine not each time."""
    for number in range(30):
        started = time.monotonic()
        await run_labelled(client, f"quick-{number}")
        if time.monotonic() - started < 0.9:
            return
    pytest.fail("not one was")


async def test_a_killed_server_comes_back_with_everything(tmp_path: Path) -> None:
    db = tmp_path / "temporal.db"
    async with await DevServer.start(db_file=db, log=tmp_path / "log") as server:
        client = await server.connect(await server.new_namespace())
        await run_labelled(client, "kept")
        server.kill()
        await server.restart()
        assert await ids(client, "TrainJob='kept'") == ["same-id"]


async def test_the_page_of_a_server_with_ui_is_served(tmp_path: Path) -> None:
    async with await DevServer.start(ui=True, log=tmp_path / "log") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ui_port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_hook_that_ends_answers_whom_it_let_in() -> None:
    """What a server forgets between letting in and handing on stays open until a later test pays for it."""
    body = b'{"event": "JobStarted"}'
    loop = asyncio.get_running_loop()
    with socket.socket() as asking:
        async with hooked() as hook:
            asking.connect(("127.0.0.1", hook.port))
            for _ in range(2):  # the server sees it, and lets it in
                await asyncio.sleep(0)
        asking.setblocking(False)
        await loop.sock_sendall(
            asking, b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        await loop.sock_sendall(asking, body)
        async with asyncio.timeout(HUNG_S):
            assert (await loop.sock_recv(asking, 1024)).startswith(b"HTTP/1.1 204")


async def test_a_wire_that_ends_closes_what_it_let_in() -> None:
    """One that has no transport yet, and one whose task has not begun."""
    for steps in (2, 3, 4):
        with socket.socket() as client:
            async with Wire(server_port=0) as wire:
                client.connect(("127.0.0.1", wire.port))
                for _ in range(steps):
                    await asyncio.sleep(0)
            client.settimeout(HUNG_S)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""


async def test_a_child_that_ends_too_early_shows_its_last_words(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    child = Child([sys.executable, "-c", "exit('no luck')"], name="it", log=tmp_path / "log")
    with pytest.raises(ChildFailed, match=r"(?s)it: ended with 1.*no luck"):
        await child.until(never, within_s=10)
    child.kill()


async def test_a_child_that_ends_when_it_has_done_it_did_it(tmp_path: Path) -> None:
    """It ends just after the question whether it has."""
    child = Child([sys.executable, "-c", "print('done')"], name="it", log=tmp_path / "log")
    calls = 0

    async def has_done_it() -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            await child.ended(within_s=HUNG_S)
            return False
        return "done" in child.output()

    await child.until(has_done_it, within_s=HUNG_S)
    assert calls == 2


async def test_a_killed_child_is_gone(tmp_path: Path) -> None:
    child = Child(PRINTS_AND_WAITS, name="it", log=tmp_path / "log")

    async def spoke() -> bool:
        return "here" in child.output()

    await child.until(spoke, within_s=10)
    assert child.kill() == -signal.SIGKILL
    assert child.kill() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
async def test_children_die_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    run = f"""
import os, sys
from pathlib import Path
from tests.support import at_work
from tests.support.child import Child
child = Child({PRINTS_AND_WAITS!r}, name="it", log=Path({str(tmp_path / "log")!r}))
while "here" not in child.output():
    pass
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", run], stdout=subprocess.PIPE, check=False, cwd=ROOT
    )
    assert done.returncode == -signal.SIGKILL
    await eventually_gone(int(done.stdout))


async def eventually_gone(pid: int) -> None:
    while is_running(pid):
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """False for a process that is gone or dead and only waits for its parent to notice."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


BEGUN, LET_GO = threading.Event(), threading.Event()


@workflow.defn
class Wedged:
    """Keeps its thread, and cannot be evicted before it is let go."""

    @workflow.run
    async def run(self) -> None:
        BEGUN.set()
        LET_GO.wait()


async def test_a_failed_test_does_not_wait_for_a_workflow_that_cannot_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_work, "FAILED_S", 0.1)
    worker = Worker(
        client, task_queue="q", workflows=[Wedged], workflow_runner=UnsandboxedWorkflowRunner()
    )

    async def fails() -> None:
        async with at_work.at_work(worker):
            await client.start_workflow(Wedged.run, id="wedged", task_queue="q")
            assert await asyncio.to_thread(BEGUN.wait, HUNG_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert not worker.is_shutdown
    LET_GO.set()


def test_no_collection_falls_into_the_parsing_of_a_source() -> None:
    collected: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        collected.append(phase)

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    gc.callbacks.append(note)
    try:
        before = len(collected)
        tree = parsed("x = [1, 2, 3]\n" * 100)
        during = len(collected) - before
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
    assert len(tree.body) == 100
    assert during == 0
    assert gc.isenabled()


def test_a_run_interrupted_within_its_first_file_has_costs_to_show(
    pytestconfig: pytest.Config,
) -> None:
    printed = io.StringIO()
    Costs(pytestconfig).pytest_terminal_summary(pytest.TerminalReporter(pytestconfig, printed))
    assert printed.getvalue().split()[-5:] == ["0.0", "0.0", "0.0", "0", "all"]


CONFTEST = """
import pytest
from tests.support.child import die_with_parent

die_with_parent()

@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    print("reported", report.when, flush=True)
"""


@pytest.mark.long
def test_a_run_that_is_ended_early_prints_the_costs_of_files_that_were_through(
    tmp_path: Path,
) -> None:
    """Only this one ends a run of several processes that measures."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_first.py").write_text("def test_one():\n    assert 1\n")
    (tmp_path / "test_second.py").write_text("import time\ndef test_two():\n    time.sleep(600)\n")
    options = ["-p", "tests.support.costs", "-n", "2", "--dist", "loadfile", "-s"]
    command = [sys.executable, "-m", "pytest", *options, "."]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        try:
            while "reported teardown" not in run.stdout.readline():
                assert run.poll() is None
            run.terminate()
            rest = run.stdout.read()
        finally:
            run.kill()
    rows = [line.split() for line in rest.splitlines() if line.endswith("test_first.py")]
    assert [row[-2:] for row in rows] == [["1", "test_first.py"]]


async def test_no_line_of_the_scribe_crosses_a_page(tmp_path: Path) -> None:
    """Else a reader finds a part of one, and a SIGKILL may leave one."""
    variables = {"RANK": "0", "STEPS": "2", "CHECKPOINTS": str(tmp_path)}
    child = Child(
        [sys.executable, str(ROOT / "tests/support/scripts/scribe.py")],
        name="scribe",
        log=tmp_path / "log",
        env={**os.environ, **variables, "EVERSTEP_GENERATION": "2"},
    )
    assert await child.ended(within_s=HUNG_S) == 0, child.output()
    lines = (tmp_path / "writes.jsonl").read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["what"] for line in lines] == ["start", "save", "save"]
    (length,) = {len(line) for line in lines}
    assert os.sysconf("SC_PAGE_SIZE") % length == 0
