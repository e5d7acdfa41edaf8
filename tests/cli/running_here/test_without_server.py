"""What commands print of a job after its `run` has ended, and with that the server."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.cli.running_here.running import Interrupts, run_to_end
from everstep.client.documents.command_document import job_of
from everstep.client.documents.documents import JobDocument
from everstep.client.serving import running
from everstep.processes import free_port
from tests.cli.conftest import AsyncCli, Cli, Ended
from tests.cli.standin import document, working

COMMANDS = (
    ("why", "demo"),
    ("why", "demo", "1"),
    ("why", "demo", "2", "--json"),
    ("why", "demo", "3"),
    ("report", "demo"),
    ("status", "demo"),
    ("restarts", "demo"),
    ("restarts", "demo", "--json"),
    ("events", "demo"),
)


def job(end: str) -> JobDocument:
    spec = job_of(["/bin/sh", "train.sh"], {}).spec
    return JobDocument(document=document(end=end), spec=spec, has_output=False)


async def run(client: Client, end: str) -> int:
    follow = partial(run_to_end, interrupts=Interrupts([]))
    return await running.run_on(client, job(end), "demo", None, follow)


def end_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")


def without_its_own_time(ended: Ended) -> tuple[int, str]:
    """What it printed, but when a report was made."""
    return ended.code, re.sub(r"Made [0-9: -]+", "", ended.out)


@pytest.mark.parametrize("lives", [1, 2])
async def test_after_a_run_the_story_of_its_job_is_read_without_a_server(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lives: int
) -> None:
    async with working(client):
        for _ in range(lives):
            assert await run(client, "failed") == 1
    with_server = [await served(*command) for command in COMMANDS]
    end_server(monkeypatch)
    path = tmp_path / "home" / "ended" / "demo.json"
    for command, expected in zip(COMMANDS, with_server, strict=True):
        ended = await served(*command)
        assert without_its_own_time(ended) == without_its_own_time(expected), command
        note = f"note   no server answers: this is from {path}, written when demo ended\n"
        assert ended.err == note + expected.err
    assert path.stat().st_mode & 0o777 == 0o600


async def test_the_report_is_written_without_a_server_too(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with working(client):
        assert await run(client, "completed") == 0
    end_server(monkeypatch)
    page = tmp_path / "demo.html"
    assert (await served("report", "demo", "-o", str(page))).code == 0
    assert "<html" in page.read_text()


@pytest.mark.parametrize("lives", [1, 2])
async def test_the_report_of_all_jobs_is_that_of_the_files_without_a_server(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    async with working(client):
        for _ in range(lives):
            assert await run(client, "failed") == 1
    with_server = (await served("report", "--since", "1h", "--json")).json
    end_server(monkeypatch)
    ended = await served("report", "--since", "1h", "--json")
    report = ended.json
    assert len(report["jobs"]) == lives
    (gap,) = report["gaps"]
    assert (
        gap == "no server answers: only jobs are counted whose `everstep run` ended on this machine"
    )
    assert ended.err == f"note   {gap}\n"
    of_now = {"since", "as_of", "gaps"}
    assert {key: report[key] for key in report.keys() - of_now} == {
        key: with_server[key] for key in with_server.keys() - of_now
    }
    assert (await served("report", "--since", "0s", "--json")).json["jobs"] == []


async def test_a_job_that_was_started_again_is_not_told_as_it_ended_before(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with working(client):
        await run(client, "failed")
    await running._start_or_find(client, job(""), "demo", say=print)
    end_server(monkeypatch)
    assert (await served("why", "demo")).code == 4


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"id": "demo", "more": 1}'])
def test_a_file_that_cannot_be_read_is_as_none(cli: Cli, tmp_path: Path, content: str) -> None:
    path = tmp_path / "home" / "ended" / "demo.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert "no Temporal server answers" in cli("why", "demo").sentence
    assert "no Temporal server answers" in cli("why", "../ended/demo").sentence
    assert "no Temporal server answers" in cli("report", "--since", "1d").sentence


async def test_a_folder_that_takes_no_file_changes_no_exit_code(
    served: AsyncCli, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "ended").touch()
    async with working(client):
        assert await run(client, "completed") == 0
    assert "without a server `everstep why demo` has nothing to read" in caplog.text
