"""`everstep doctor`: what is not as a job needs it is named, with what to try next."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from everstep.agent import build
from everstep.agent.processes import proc
from everstep.backends.local import examining
from everstep.backends.local.database import nodes, pods
from everstep.backends.local.database.store import Db
from everstep.backends.local.reconciling.agents import AgentFolder, kill_agent
from everstep.backends.local.reconciling.liveness import Life, agent_of, sweep
from everstep.backends.local.settings import LocalSettings
from everstep.cli.cluster.doctor import job_levels
from everstep.client import connection
from everstep.client.serving import holding
from everstep.client.serving.holding import ServerAddress
from everstep.processes import free_port
from everstep.protocol import wire
from tests.cli.conftest import AsyncCli, Cli, Ended, submitted
from tests.cli.standin import document, working
from tests.support import books
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.workerproc import WorkerProcess


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Iterator[Path]:
    """A state directory closed to others; requested after `cli`, which removes all our settings."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    usual = os.umask(0o077)
    yield tmp_path / "home"
    os.umask(usual)


def checks(ended: Ended) -> dict[str, dict[str, Any]]:
    """The checks by name; of several with one name the worst."""
    report = json.loads(ended.out)
    assert report.keys() == {"ok", "checks"}
    assert report["ok"] is (ended.code == 0)
    worst = sorted(
        report["checks"], key=lambda check: ["ok", "note", "problem"].index(check["state"])
    )
    assert {"name", "state", "what", "hint"} == set().union(*worst)
    return {check["name"]: check for check in worst}


def problems(ended: Ended) -> set[str]:
    return {name for name, check in checks(ended).items() if check["state"] == "problem"}


# -- The server ---------------------------------------------------------------------------------


def test_without_a_server_that_was_named_a_sound_machine_has_no_problem(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEMPORAL_ADDRESS")
    monkeypatch.setattr(connection, "USUAL", f"127.0.0.1:{free_port()}")  # nobody is there
    ended = cli("doctor", "--json")
    by_name = checks(ended)
    assert (ended.code, by_name["server"]["state"]) == (0, "note")
    assert "bring their own" in by_name["server"]["hint"]


def test_a_server_that_was_named_and_does_not_answer_ends_with_4(cli: Cli) -> None:
    ended = cli("doctor", "--json")
    assert (ended.code, problems(ended)) == (4, {"server"})
    page = cli("doctor")
    assert (page.code, page.err) == (4, "")
    heading, *lines = page.out.splitlines()
    assert heading.split() == ["STATE", "CHECK", "FOUND"]
    assert lines[0].startswith("problem  server           no Temporal server answers at 127.0.0.1:")
    firsts = {line.split()[0] for line in lines if not line.startswith(" ")}
    assert firsts <= {"ok", "note", "problem"}


async def test_a_server_without_workers_is_a_problem_with_a_way_out(served: AsyncCli) -> None:
    ended = await served("doctor", "--json")
    assert (ended.code, problems(ended)) == (1, {"worker"})
    assert "everstep dev" in checks(ended)["worker"]["hint"]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerAddress]:
    """Where a server takes connections and says nothing, as one that is stopped does."""
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield ServerAddress(port=server.getsockname()[1], ui_port=free_port())


def test_a_frozen_server_of_this_machine_is_a_problem_at_the_address_that_others_use(
    cli: Cli, home: Path, frozen: ServerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEMPORAL_ADDRESS")
    home.mkdir()
    held = holding.take(home)
    assert held is not None
    held.write_address(frozen)
    try:
        ended = cli("doctor", "--json")
        other = cli("list")
    finally:
        held.release()
    assert (ended.code, problems(ended), other.code) == (4, {"server"}, 4)
    assert checks(ended)["server"]["what"] == other.sentence
    assert frozen.address in other.sentence


@pytest.fixture
async def worker(server: DevServer, namespace: str, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker to kill."""
    async with worker_of(server, namespace, tmp_path / "home") as living:
        yield living


def worker_of(server: DevServer, namespace: str, home: Path) -> WorkerProcess:
    return WorkerProcess(address=server.address, namespace=namespace, home=home, backend="local")


@pytest.fixture(scope="module")
async def shared_worker(
    server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[WorkerProcess]:
    """One for the tests that leave it alive: it takes a second to start."""
    home = tmp_path_factory.mktemp("shared") / "home"
    home.mkdir(mode=0o700)
    async with worker_of(server, await server.new_namespace("doctor"), home) as living:
        yield living


@pytest.fixture
def lasting_worker(
    shared_worker: WorkerProcess, served: AsyncCli, monkeypatch: pytest.MonkeyPatch
) -> WorkerProcess:
    """The shared one, with its namespace and its state directory for the command line."""
    monkeypatch.setenv("TEMPORAL_NAMESPACE", shared_worker.settings["TEMPORAL_NAMESPACE"])
    monkeypatch.setenv("EVERSTEP_HOME", str(shared_worker.home))
    return shared_worker


async def while_stopped(served: AsyncCli, pid: int, *words: str) -> Ended:
    """The command, while this process may not run: on a busy machine it stops only after a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while (process := proc.find(pid)) is not None and not process.is_stopped:
            await asyncio.sleep(0.01)
        return await served(*words)
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_stopped_worker_is_named_though_it_asked_for_work_just_now(
    served: AsyncCli, lasting_worker: WorkerProcess
) -> None:
    await well(served)
    pid = lasting_worker.pid
    ended = await while_stopped(served, pid, "doctor", "--json")
    assert (ended.code, problems(ended)) == (1, {"worker"})
    worker_check = checks(ended)["worker"]
    assert f"process {pid} of this machine is stopped" in worker_check["what"]
    assert worker_check["hint"] == f"`kill -CONT {pid}`"
    await well(served)


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGSTOP, marks=pytest.mark.long), signal.SIGKILL]
)
async def test_a_worker_that_asked_for_work_lately_and_answers_nobody_is_a_problem(
    served: AsyncCli, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    await well(served)
    # As of another machine, whose processes nobody here can look at.
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    os.kill(worker.pid, how)
    ended = await served("doctor", "--json")
    assert (ended.code, problems(ended)) == (1, {"worker"})
    assert "none answers for janitor/local within 0.5 s" in checks(ended)["worker"]["what"]


async def well(served: AsyncCli) -> None:
    """A ready worker polls the server in the next moment."""
    deadline = time.monotonic() + HUNG_S
    while (ended := await served("doctor", "--json")).code:
        assert time.monotonic() < deadline, ended.out


async def test_a_workflow_that_has_the_id_of_the_janitor_is_named(
    served: AsyncCli, client: Client
) -> None:
    await client.start_workflow("SomethingElse", id="janitor/local", task_queue="nobody")
    workflow_check = checks(await served("doctor", "--json"))["workflow"]
    assert workflow_check["state"] == "problem"
    assert workflow_check["what"].startswith("janitor/local is a SomethingElse")
    assert "terminate --workflow-id janitor/local" in workflow_check["hint"]


async def test_a_job_on_a_wrong_task_queue_is_named(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start_workflow("TrainingJob", document(), id="demo", task_queue="everstepp")
    deadline = time.monotonic() + HUNG_S
    while "job" not in problems(ended := await served("doctor", "--json")):
        assert time.monotonic() < deadline, ended.out
    job_check = checks(ended)["job"]
    assert job_check["what"] == "demo waits on task queue everstepp; workers serve jobs on everstep"
    assert "--task-queue everstep`" in job_check["hint"]
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    status = await served("status", "demo")
    assert status.code == 4
    assert "it waits on task queue everstepp, and workers serve jobs on everstep" in status.sentence


async def test_what_a_job_lacks_for_the_next_level_is_named(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        assert (await submitted(served, document(cluster="local"))).code == 0
        deadline = time.monotonic() + HUNG_S
        while not (lines := await job_levels(client, "local")):
            assert time.monotonic() < deadline
    (line,) = lines
    assert line.what == "demo can have in_place, suspension, pod, job, rollback"
    assert "not process: not every rank declares pause and rebuild" in line.hint
    assert "elastic" not in line.hint


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place whose clocks are eight hours ahead of the server's."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "EAST-8")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east", "lasting_worker")
async def test_with_a_worker_everything_is_well_but_for_the_other_cluster(served: AsyncCli) -> None:
    await well(served)
    assert "can be read" in checks(await served("doctor", "--json"))["database"]["what"]
    other = await served("doctor", "--json", "--cluster", "gpu")
    assert (other.code, problems(other)) == (1, {"worker"})
    assert "everstep-gpu" in checks(other)["worker"]["what"]


async def test_a_namespace_that_is_bare_or_not_there_is_a_problem(
    served: AsyncCli, server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.bare_namespace("bare-doctor")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "bare-doctor")
    bare = await served("doctor", "--json")
    assert bare.code == 1
    assert "search-attribute create" in checks(bare)["namespace"]["hint"]
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")
    nowhere = await served("doctor", "--json")
    assert (nowhere.code, problems(nowhere)) == (4, {"namespace"})
    assert "no namespace nowhere" in checks(nowhere)["namespace"]["what"]


# -- The machine --------------------------------------------------------------------------------


def test_a_state_directory_that_is_none_is_a_problem(cli: Cli, home: Path) -> None:
    home.write_text("a file")
    assert problems(cli("doctor", "--json")) == {"server", "storage"}


def test_what_a_job_can_do_without_is_noted_with_what_was_found_and_wanted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROOT_GB", "SHM_GB", "CACHE_GB", "OPEN_FILES"):
        monkeypatch.setenv(f"EVERSTEP_PRECHECK__{name}", "4000000000000")
    ended = cli("doctor", "--json")
    by_name = checks(ended)
    short = ("disk-size-root", "disk-size-shm", "disk-size-cache", "ulimit")
    assert {by_name[name]["state"] for name in short} == {"note"}
    assert all("wanted: more than " in by_name[name]["what"] for name in short)
    assert by_name["dns"]["state"] == "ok"
    assert problems(ended) == {"server"}


def test_a_machine_with_more_than_enough_passes_the_checks_before_a_start(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = ("ROOT_GB", "SHM_GB", "CACHE_GB")
    for name in (*least, "LOCKED_KB", "OPEN_FILES", "STACK_KB", "USER_PROCESSES"):
        monkeypatch.setenv(f"EVERSTEP_PRECHECK__{name}", "0")
    by_name = checks(cli("doctor", "--json"))
    names = ("dns", "disk-size-root", "disk-size-shm", "disk-size-cache", "ulimit")
    assert {by_name[name]["state"] for name in names} == {"ok"}


def test_a_threshold_that_is_no_number_is_a_problem(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PRECHECK__ROOT_GB", "much")
    precheck = checks(cli("doctor", "--json"))["precheck"]
    assert (precheck["state"], "valid number" in precheck["what"]) == ("problem", True)


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a tool of this name first on the path; it runs this script."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    def install(script: str) -> None:
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o700)

    return install


@pytest.mark.parametrize(
    ("script", "state", "message"),
    [
        ("echo 'GPU 0: H100'; echo 'GPU 1: H100'", "ok", "nvidia-smi lists 2"),
        ("true", "note", "lists no device"),
        ("exit 9", "problem", "does not answer"),
    ],
)
def test_accelerators_are_those_that_their_tool_lists(
    cli: Cli, nvidia: Callable[[str], None], script: str, state: str, message: str
) -> None:
    nvidia(script)
    accelerators = checks(cli("doctor", "--json"))["accelerators"]
    assert (accelerators["state"], message in accelerators["what"]) == (state, True)


BOOKS = (
    ("no books at all", b"this is no database " * 100, "not a database"),
    ("books of another version", "pods (uid TEXT)", "pods has no dead_at"),
)


@pytest.mark.parametrize(
    ("content", "message"), [row[1:] for row in BOOKS], ids=[row[0] for row in BOOKS]
)
def test_books_that_cannot_be_read_are_a_problem(
    cli: Cli, home: Path, content: bytes | str, message: str
) -> None:
    home.mkdir()
    if isinstance(content, bytes):
        (home / "local.db").write_bytes(content)
    else:
        books.make_table(home, content)
    ended = cli("doctor", "--json")
    assert problems(ended) == {"server", "database"}
    assert message in checks(ended)["database"]["what"]


@pytest.fixture
def stray(home: Path) -> Iterator[AgentFolder]:
    """A living agent that is in no books."""
    folder = AgentFolder(path=home / "agents" / "demo-0-g1-abcdef")
    folder.path.mkdir(parents=True)
    (folder.path / wire.TOKEN).write_text("secret")
    place = ("--home", str(folder.path), "--uid", folder.path.name)
    arguments = (*place, "--job", "demo", "--slot", "0", "--node", "n0")
    agent = subprocess.Popen(
        [sys.executable, "-I", str(build.ensure(home / "agent.pyz")), *arguments],
        start_new_session=True,
    )
    while folder.life() is not Life.ALIVE or agent_of(folder.path) is None:
        assert agent.poll() is None
    while not takes_connections(folder.path):
        assert agent.poll() is None
    yield folder
    kill_agent(folder)
    agent.wait()
    while sweep(folder.path) is not Life.GONE:
        pass


def enter(db: Db, uid: str) -> None:
    pods.enter(db, uid, job="demo", slot=0, node="n0", generation=1, devices=())


def takes_connections(agent_home: Path) -> bool:
    """Whether the agent listens. The path of its socket may be longer than a socket's may be."""
    place = os.open(agent_home, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{place}/{wire.SOCKET}")
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    finally:
        os.close(place)


def test_agents_that_belong_to_no_job_are_noted(cli: Cli, home: Path, stray: AgentFolder) -> None:
    uid = stray.path.name
    agents_check = checks(cli("doctor", "--json"))["agents"]
    assert (agents_check["state"], uid in agents_check["what"]) == ("note", True)
    assert "`everstep adopt JOB`" in agents_check["hint"], "a job may wait for that, and train on"
    books.change(home, lambda db: enter(db, uid))
    agents_check = checks(cli("doctor", "--json"))["agents"]
    assert (agents_check["state"], agents_check["what"]) == ("ok", "1 live, each of a job")


async def test_a_stopped_agent_of_a_job_is_named_by_doctor_and_nodes(
    served: AsyncCli, home: Path, stray: AgentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid, agent = stray.path.name, agent_of(stray.path)
    assert agent is not None
    pid = agent.pid
    settings = LocalSettings(home=home, nodes=2, devices=1)

    def prepare(db: Db) -> None:
        nodes.set_up(db, settings)
        enter(db, uid)
        pods.answered(db, uid)

    books.change(home, prepare)
    assert "agents" not in problems(await served("doctor", "--json"))
    monkeypatch.setattr(examining, "ANSWER_S", 0.2)
    agents_check = checks(await while_stopped(served, pid, "doctor", "--json"))["agents"]
    node_rows = (await while_stopped(served, pid, "nodes", "--json")).json
    page = (await while_stopped(served, pid, "nodes")).out
    silent = "the agent of demo, slot 0, does not answer (it is stopped)"
    assert (agents_check["state"], agents_check["what"]) == (
        "problem",
        f"{silent} on n0, process {pid}",
    )
    assert f"kill -CONT {pid}" in agents_check["hint"]
    assert {node["name"]: node["silent"] for node in node_rows} == {"n0": [silent], "n1": []}
    assert silent in page
