"""`everstep run -- COMMAND`: the document that a command stands for, and mistakes of who types one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client

from everstep.agent.observing.hardware import Devices
from everstep.cli.running_here import running as run_command
from everstep.client import submitting
from everstep.client.documents.command_document import job_of
from everstep.client.documents.documents import JobDocument
from everstep.client.exit_codes import Failed
from everstep.client.jobs.found_job import find, look_up
from everstep.client.serving import holding, job_ids, running
from everstep.client.serving.holding import ServerAddress
from everstep.client.serving.sharing import SharedServer
from everstep.client.serving.working import Machine
from everstep.documents.text import read_text, to_yaml
from tests.cli.conftest import AsyncCli, Cli, until
from tests.cli.standin import IN_FORCE, document, working
from tests.support.patience import HUNG_S

PYTHON = Path(sys.executable)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, who stands in it and has this interpreter's folder on the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{PYTHON.parent}:/usr/bin:/bin")
    return tmp_path


def printed(cli: Cli, *words: str) -> dict[str, Any]:
    ended = cli("run", "--print", *words)
    assert ended.code == 0, ended.err
    return read_text(ended.out)


def test_a_command_stands_for_a_document(cli: Cli, here: Path) -> None:
    assert printed(cli, "--", "python", "train.py", "--lr", "1e-3") == {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "train"},
        "spec": {
            "command": [str(PYTHON.parent / "python"), "train.py", "--lr", "1e-3"],
            "workdir": str(here),
        },
    }


def test_options_of_run_are_keys_of_the_document(cli: Cli, here: Path) -> None:
    options = (
        *("--processes", "4", "--nodes", "2", "--checkpoints", "out/ckpt"),
        *("--checkpoint-pattern", r"state_(?P<step>\d+)"),
        *("--prewarm", "torch", "--prewarm", "torch._dynamo", "--log-pattern", r"it (?P<step>\d+)"),
        *("--hang-s", "90"),
    )
    spec = printed(cli, *options, "--", "python", "train.py")["spec"]
    del spec["command"], spec["workdir"]
    assert spec == {
        "nodes": 2,
        "processes_per_node": 4,
        "checkpoints": {"path": "out/ckpt", "pattern": r"state_(?P<step>\d+)"},
        "prewarm": ["torch", "torch._dynamo"],
        "progress": {"log_pattern": r"it (?P<step>\d+)"},
        "limits": {"hang_s": 90.0},
    }


def test_an_id_is_the_name_of_the_printed_document(cli: Cli, here: Path) -> None:
    assert printed(cli, "--id", "night-7", "--", "python", "t.py")["metadata"] == {
        "name": "night-7"
    }


def test_variables_of_this_shell_are_handed_over(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    options = ("--env", "CUDA_VISIBLE_DEVICES", "--env", "LR=a=b")
    spec = printed(cli, *options, "--", "python", "train.py")["spec"]
    assert spec["env"] == {"CUDA_VISIBLE_DEVICES": "0,1", "LR": "a=b"}


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("--", "python", "-m", "torch.distributed.run", "t.py"), "torch.distributed.run starts"),
        (
            ("--env", "RANK=3", "--", "python", "t.py"),
            "--env has no effect: every training process",
        ),
        (("--prewarm", "torch", "--", "/bin/true"), "--prewarm has no effect"),
        (("--", "/bin/true"), "--checkpoints missing: the step from which a restart resumes"),
    ],
)
def test_what_makes_no_sense_is_noted(
    cli: Cli, here: Path, words: tuple[str, ...], note: str
) -> None:
    ended = cli("run", "--print", *words)
    assert ended.code == 0
    assert f"note   {note}" in ended.err


def test_what_is_printed_is_a_document_that_validates(cli: Cli, here: Path) -> None:
    text = cli("run", "--print", "--", "python", "-u", "train.py", "1e5", "on", "a: b # c").out
    assert cli("validate", "-", stdin=text.encode()).code == 0


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "train.py", "--lr", "1"), "train"),
        (("python", "-u", "-X", "dev", "src/pre train.py"), "pre-train"),
        (("python", "-m", "pkg.train", "x.yaml"), "pkg.train"),
        (("bash", "go.sh"), "go"),
        (("sh", "-c", "exit 1"), "sh"),
        (("/bin/true", "x"), "true"),
        (("python", "-c", "1", "ä.py"), "python"),
        (("python", f"{'x' * 99}.py"), "x" * 63),
    ],
)
def test_a_job_is_named_after_its_script(
    cli: Cli, here: Path, command: tuple[str, ...], name: str
) -> None:
    assert printed(cli, "--", *command)["metadata"]["name"] == name


def test_a_size_of_the_machine_is_no_size_of_the_job(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_NODES", "5")
    assert "nodes" not in printed(cli, "--", "python", "train.py")["spec"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "run what? Give a FILE, or a command: everstep run -- python train.py"),
        (("--",), "run what?"),
        (("job.yaml", "--", "python", "x.py"), "job.yaml, or the command behind `--`, not both"),
        (("train.py",), "`everstep run -- python train.py`"),
        (("train.py", "--lr", "1"), "`everstep run -- python train.py --lr 1`"),
        (("python", "train.py", "--lr", "1"), "`everstep run -- python train.py --lr 1`"),
        (("--processes", "2", "./go.sh"), "`everstep run --processes 2 -- ./go.sh`"),
        (("--processes", "4", "job.yaml"), "--processes is for a command; in a document it is"),
        (("--log-pattern", "(", "--", "python", "t.py"), "--log-pattern: is not a regular"),
        (("--log-pattern", r"it (\d+)", "--", "python", "t.py"), "must have a group named step"),
        (
            ("--checkpoint-pattern", r"s_(?P<step>\d+)", "--", "/bin/true"),
            "--checkpoints: missing; name the directory",
        ),
        (
            (
                "--checkpoints",
                "x",
                "--checkpoint-pattern",
                r"(a+)+(?P<step>\d+)",
                "--",
                "/bin/true",
            ),
            "--checkpoint-pattern: may have 3 of * + {} at most, and none behind a group",
        ),
        (("--prewarm", "os;", "--", "python", "t.py"), "--prewarm: must be a module"),
        (("--processes", "9999", "--", "python", "t.py"), "--processes: must be at most 1024"),
        (("--", "nosuchprogram", "t.py"), "nosuchprogram: no such program on the PATH"),
        (("--", "./gone"), "./gone: no such program"),
        (("--", ""), "no such program"),
        (("--env", "GONE", "--", "/bin/true"), "--env GONE: there is no such variable here"),
        (("--env", "A B=1", "--", "/bin/true"), "--env: must be a variable's name"),
    ],
)
def test_mistakes_end_in_one_sentence(
    cli: Cli, here: Path, words: tuple[str, ...], sentence: str
) -> None:
    ended = cli("run", *words)
    assert ended.code == 2
    assert sentence in ended.sentence


# -- A job of this name that runs ----------------------------------------------------------------


async def test_only_the_same_command_is_watched_instead_of_started(
    served: AsyncCli, client: Client, here: Path
) -> None:
    job = job_of(["python", "train.py"], {})
    await running._start_or_find(client, job, "train", say=print)
    await running._start_or_find(client, job, "train", say=print)
    other = job_of(["python", "train.py", "-x"], {})
    with pytest.raises(Failed, match=r"train is running already: .*train.py in .*--id NEW"):
        await running._start_or_find(client, other, "train", say=print)


async def test_a_job_that_runs_with_another_document_is_watched_with_a_note(
    served: AsyncCli, client: Client, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else who changed the file takes what runs for what it says now."""
    job = job_of(["python", "train.py"], {})
    note = "train runs with another document than this one; `everstep show train` prints it"
    for document_here, is_other in ((job, False), (job, False), (with_nodes(job), True)):
        await running._start_or_find(client, document_here, "train", say=print)
        assert caplog.messages == ([note] if is_other else [])
        caplog.clear()


def with_nodes(job: JobDocument) -> JobDocument:
    return replace(job, document={**job.document, "spec": {**job.document["spec"], "nodes": 2}})


async def test_a_hot_update_makes_it_another_document(
    served: AsyncCli, client: Client, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job follows the document in force, which the stand-in has changed: this file is only its begin."""
    begun = JobDocument(document=document(), spec=job_of(["python", "train.py"], {}).spec)
    changed = replace(begun, document=IN_FORCE)
    async with working(client):
        for document_here, is_other in ((begun, False), (begun, True), (changed, False)):
            await running._start_or_find(client, document_here, "demo", say=print)
            assert ("demo runs with another document" in caplog.text) == is_other
            caplog.clear()
        await client.get_workflow_handle("demo").terminate()


async def test_a_job_that_its_worker_fails_at_is_found_as_well(
    served: AsyncCli, client: Client, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot return its document, and the server reports that at once."""
    handle = client.get_workflow_handle("demo")
    job = of_standin(end="broken")

    async def is_failing() -> bool:
        return (await handle.describe()).raw_description.pending_workflow_task.attempt > 3

    async with working(client):
        await running._start_or_find(client, job, "demo", say=print)
        await until(is_failing)
        await running._start_or_find(client, job, "demo", say=print)
        await handle.terminate()
    assert capsys.readouterr() == ("demo is running already\n", "")


async def test_a_job_of_a_cluster_without_a_worker_is_noted_before_any_wait(
    served: AsyncCli, client: Client, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`run` starts workers of this machine alone, and the first answer of the job may take for ever."""
    job = job_of(["python", "train.py"], {})
    job = replace(job, spec=replace(job.spec, cluster="gpu"))
    machine = Machine(nodes=1, devices=Devices(kind="simulated", count=0, why="as configured"))
    run = running.JobRun(server=client, job=job, id="train", say=print)
    async with running._worker_ensured(run, machine) as worker:
        assert not worker.is_begun
        note = "no worker serves queue everstep, everstep-gpu: the job waits for one"
        assert caplog.messages == [note]


# -- A fresh one ---------------------------------------------------------------------------------


async def test_a_fresh_job_has_the_next_id_and_folders_of_its_own(
    served: AsyncCli, client: Client, here: Path
) -> None:
    job = job_of(["python", "train.py"], {})
    phases = [{"name": "warmup"}, {"name": "main", "model_dir": "x"}]
    spec = {**job.document["spec"], "model_dir": "out", "phases": phases}
    fresh = replace(job, document={**job.document, "spec": spec}, is_fresh=True)
    ids = []
    for _ in range(3):
        handle, job_id = await job_ids.job_and_id(client, fresh, "train", say=print)
        await running._start_or_find(client, handle, job_id, say=print)
        ids.append(job_id)
        job_handle = await find(client, job_id)
        spec_of_job = (await job_handle.document())["spec"]
        assert [
            spec_of_job["model_dir"],
            *(phase["model_dir"] for phase in spec_of_job["phases"]),
        ] == [None] * 3
    assert ids == ["train", "train-2", "train-3"]
    with pytest.raises(Failed, match="there is a job train-3 already"):
        await running._start_or_find(client, fresh, "train-3", say=print)
    long = "x" * 63
    await running._start_or_find(client, job, long, say=print)
    assert (await job_ids.job_and_id(client, fresh, long, say=print))[1] == f"{'x' * 61}-2"


@pytest.fixture
def starts_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two runs start their jobs once both have looked for jobs of the ID. One of them starts again then."""
    first_starts, start = asyncio.Barrier(2), submitting.start
    calls: list[str] = []

    async def start_at_once(*args: Any) -> dict[str, Any]:
        calls.append(args[2])
        if len(calls) <= 2:
            async with asyncio.timeout(HUNG_S):
                await first_starts.wait()
        return await start(*args)

    monkeypatch.setattr(running, "start", start_at_once)
    yield
    assert calls[:2] == ["demo", "demo"]


@pytest.mark.usefixtures("starts_at_once")
async def test_two_fresh_runs_at_once_are_two_jobs(
    served: AsyncCli, client: Client, here: Path
) -> None:
    job = replace(of_standin(end="completed"), is_fresh=True)
    async with working(client):
        assert await asyncio.gather(*(run_on(client, job) for _ in range(2))) == [0, 0]
    assert await look_up(client, "demo-2") is not None


@pytest.mark.usefixtures("starts_at_once")
async def test_two_runs_at_once_watch_one_job(
    served: AsyncCli, client: Client, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = asyncio.gather(*(run_on(client, of_standin()) for _ in range(2)))
    async with working(client), asyncio.timeout(HUNG_S):
        while "demo is running already" not in capsys.readouterr().out:
            assert not both.done()
            await asyncio.sleep(0.05)
        await client.get_workflow_handle("demo").execute_update("stop", {"reason": "completed"})
        assert await both == [0, 0]


def test_a_job_that_is_left_is_served_on_by_dev_and_not_by_another_run(
    client: Client, tmp_path: Path
) -> None:
    """Both have the server that a `run` finds, and a worker; `dev` stays, and a `run` may follow it."""
    of_dev = ServerAddress(port=7233, ui_port=8233, nodes=4, is_permanent=True)
    held = holding.take(tmp_path)
    assert held is not None
    shared = SharedServer(tmp_path, of_dev)
    job = running.JobRun(server=client, job=of_standin(), id="demo", say=print, shared=shared)
    with contextlib.ExitStack() as served:
        served.callback(held.release)
        held.write_address(of_dev)
        assert "demo goes on; " in run_command.farewell(job)
        held.write_address(ServerAddress(port=7233, ui_port=8233))
        assert "demo goes on without a worker until " in run_command.farewell(job)
    assert "demo goes on without a worker until " in run_command.farewell(job), "it has ended"


def of_standin(*, end: str = "") -> JobDocument:
    spec = job_of(["python", "train.py"], {}).spec
    return JobDocument(document=document(end=end), spec=spec, has_output=False)


def run_on(client: Client, job: JobDocument) -> Coroutine[Any, Any, int]:
    follow = partial(run_command.run_to_end, interrupts=run_command.Interrupts([]))
    return running.run_on(client, job, "demo", None, follow, say=run_command.print_line)


# -- The text of a document ---------------------------------------------------------------------

scalars = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    st.sampled_from(["1e5", "on", "0o17", "~", "", ".5", "- x", "a: b", "#", "2024-01-01", "0x1F"]),
    st.integers(-(2**53), 2**53),
    st.booleans(),
    st.none(),
)


@given(st.dictionaries(st.text("abcdef", min_size=1), st.lists(scalars, max_size=4), max_size=4))
def test_what_is_written_is_read_as_it_was(spec: dict[str, Any]) -> None:
    body = {**document(), "spec": spec}
    assert read_text(to_yaml(body)) == body
