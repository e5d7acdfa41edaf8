"""Which job `everstep run -- COMMAND` starts or finds where other scripts have the same name."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from everstep.cli.running_here import choosing
from everstep.client.documents.command_document import job_of
from everstep.client.documents.documents import JobDocument
from everstep.client.exit_codes import Failed
from everstep.client.jobs.found_job import find
from everstep.client.serving import job_ids, running
from tests.cli.standin import working

SCRIPT = Path(sys.executable).with_name("everstep")

pytestmark = pytest.mark.usefixtures("served")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders, and `python` on the PATH of the user."""
    pair = (tmp_path / "a", tmp_path / "b")
    for folder in pair:
        folder.mkdir()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return pair


def job_in(folder: Path, *command: str, end: str = "") -> JobDocument:
    """What `everstep run -- COMMAND` in this folder stands for; the stand-in ends it so."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        job = job_of(command or ("/bin/sh", "train.sh"), {})
    finally:
        os.chdir(here)
    metadata: dict[str, Any] = {**job.document["metadata"], "labels": {"end": end}}
    return replace(job, document={**job.document, "metadata": metadata})


async def run(client: Client, job: JobDocument, name: str = "train") -> str:
    """Start or find the job as `run` does. Returns its ID."""
    confirms = choosing.confirms if choosing.can_prompt() else None
    job, job_id = await job_ids.job_and_id(client, job, name, say=print, confirms=confirms)
    await running._start_or_find(client, job, job_id, say=print)
    return job_id


async def close(client: Client, job_id: str) -> None:
    await client.get_workflow_handle(job_id).terminate()


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_script_of_that_name_in_another_folder_is_another_job(
    client: Client,
    folders: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    has_ended: bool,
) -> None:
    """Else it resumes from the other script's checkpoints, or is refused while that one runs."""
    first, second = map(job_in, folders)
    assert await run(client, first) == "train"
    if has_ended:
        await close(client, "train")
    capsys.readouterr()
    assert await run(client, second) == "train-2"
    note = f"train is another job: /bin/sh train.sh in {folders[0]}; this one is train-2\n"
    assert note in capsys.readouterr().out
    assert (await (await find(client, "train-2")).document())["spec"]["workdir"] == str(folders[1])
    assert [await run(client, job) for job in (first, second)] == ["train", "train-2"]


async def test_another_script_of_that_name_in_this_folder_is_another_job(
    client: Client, folders: tuple[Path, Path]
) -> None:
    scripts = [job_in(folders[0], "/bin/sh", script) for script in ("x/train.sh", "y/train.sh")]
    assert [await run(client, job) for job in scripts] == ["train", "train-2"]


async def test_the_newest_of_several_jobs_of_a_script_is_resumed(
    client: Client, folders: tuple[Path, Path]
) -> None:
    first, _ = map(job_in, folders)
    await run(client, first)
    await close(client, "train")
    assert await run(client, replace(first, is_fresh=True)) == "train-2"
    await close(client, "train-2")
    assert await run(client, job_in(folders[0], "/bin/sh", "train.sh", "--lr", "1")) == "train-2"


async def test_an_id_that_was_given_is_used_whatever_ran_under_it(
    client: Client, folders: tuple[Path, Path]
) -> None:
    first, second = map(job_in, folders)
    await run(client, first)
    await close(client, "train")
    assert await run(client, replace(second, has_chosen_id=True)) == "train"


# -- A completed job -----------------------------------------------------------------------------


async def completed(client: Client, folder: Path) -> JobDocument:
    """A job of this folder that is completed, as `run` would start it again."""
    job = job_in(folder, end="completed")
    async with working(client):
        await run(client, job)
        await client.get_workflow_handle("train").result()
    return job


async def test_a_completed_job_names_the_line_that_starts_a_new_one(
    client: Client, folders: tuple[Path, Path]
) -> None:
    job = replace(await completed(client, folders[0]), fresh_line="everstep run --fresh -- x")
    with pytest.raises(Failed, match=r"train is completed; .*: `everstep run --fresh -- x`"):
        await run(client, job)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The hand's end of a terminal of the command."""
    hand, command = os.openpty()
    with os.fdopen(command) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(choosing, "can_prompt", lambda: True)
        yield hand
    os.close(hand)


async def test_at_a_terminal_a_completed_job_is_followed_by_a_new_one_in_one_step(
    client: Client, folders: tuple[Path, Path], terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await completed(client, folders[0])
    os.write(terminal, b"y\n")
    assert await run(client, job) == "train-2"
    question = "train is completed. Run it from the beginning as train-2? [y/N] "
    assert question in capsys.readouterr().out
    spec = (await (await find(client, "train-2")).document())["spec"]
    assert spec["model_dir"] is None


async def test_enter_starts_no_new_job(
    client: Client, folders: tuple[Path, Path], terminal: int
) -> None:
    job = await completed(client, folders[0])
    os.write(terminal, b"\n")
    with pytest.raises(Failed, match="train is completed"):
        await run(client, job)


async def test_the_line_that_is_offered_is_the_one_that_was_typed_with_fresh(
    client: Client, folders: tuple[Path, Path]
) -> None:
    await completed(client, folders[0])
    words = ("--no-logs", "--", "/bin/sh", "train.sh", "a b")
    async with working(client):
        process = await asyncio.create_subprocess_exec(
            SCRIPT, "run", *words, cwd=folders[0], stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        _, error = await process.communicate()
    line = error.decode().partition("`")[2].partition("`")[0]
    assert shlex.split(line) == ["everstep", "run", "--fresh", *words]
    assert process.returncode == 2
