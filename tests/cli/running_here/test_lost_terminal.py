"""A `run` whose terminal goes away, as after a lost ssh connection: it goes on, and the log has where."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.cli.jobs.watching import JobScreen
from everstep.cli.running_here.terminal import LastingScreen, Terminal
from everstep.client.jobs.glances import Glance
from tests.cli.conftest import AsyncCli
from tests.cli.standin import document, working
from tests.support.patience import HUNG_S

SCRIPT = Path(sys.executable).with_name("everstep")
GOES_ON = (
    "the terminal of this run is gone; it goes on, and so does demo: `everstep watch demo` shows the "
    "job, `everstep stop demo` ends it"
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of a cluster elsewhere: `run` starts no worker beside the stand-in."""
    content = document()
    content["spec"]["cluster"] = "gpu"
    path = tmp_path / "job.json"
    path.write_text(json.dumps(content))
    return path


async def until_reads(path: Path, text: str, process: Process) -> str:
    async with asyncio.timeout(HUNG_S):
        while not (path.exists() and text in path.read_text()):
            assert process.returncode is None
            await asyncio.sleep(0.02)
    return path.read_text()


async def until_shows(terminal: int, text: str) -> None:
    shown_bytes = b""
    async with asyncio.timeout(HUNG_S):
        while text.encode() not in shown_bytes:
            with suppress(BlockingIOError):
                shown_bytes += os.read(terminal, 65536)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def on_terminal(job: Path) -> AsyncIterator[tuple[Process, int]]:
    """`everstep run` as the leader of a terminal's session, and the other end of the terminal."""
    hand, terminal = os.openpty()
    os.set_blocking(hand, False)
    process = await asyncio.create_subprocess_exec(
        SCRIPT, "run", str(job), preexec_fn=lambda: os.login_tty(terminal)
    )
    os.close(terminal)
    try:
        yield process, hand
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def complete(client: Client) -> None:
    await client.get_workflow_handle("demo").execute_update("stop", {"reason": "completed"})


async def test_a_lost_terminal_leaves_the_job_and_its_run_going(
    served: AsyncCli, client: Client, job: Path, tmp_path: Path
) -> None:
    log = tmp_path / "home" / "run-demo.log"
    async with working(client), on_terminal(job) as (process, hand):
        await until_shows(hand, "running")
        os.close(hand)
        assert GOES_ON in await until_reads(log, "main running", process)
        await complete(client)
        assert await asyncio.wait_for(process.wait(), HUNG_S) == 0
    content = log.read_text()
    assert "main completed" in content
    assert "\x1b" not in content, "it is no page of a terminal any more"
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_terminal_lost_at_the_question_of_ctrl_c_leaves_the_run_going(
    served: AsyncCli, client: Client, job: Path, tmp_path: Path
) -> None:
    async with working(client), on_terminal(job) as (process, hand):
        await until_shows(hand, "running")
        os.write(hand, b"\x03")
        await until_shows(hand, "[l]eave")
        os.close(hand)
        await until_reads(tmp_path / "home" / "run-demo.log", "main running", process)
        await complete(client)
        assert await asyncio.wait_for(process.wait(), HUNG_S) == 0


async def test_a_run_without_its_terminal_is_still_ended_by_a_signal(
    served: AsyncCli, client: Client, job: Path, tmp_path: Path
) -> None:
    log = tmp_path / "home" / "run-demo.log"
    async with working(client), on_terminal(job) as (process, hand):
        await until_shows(hand, "running")
        os.close(hand)
        await until_reads(log, GOES_ON, process)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HUNG_S) == 130
    assert "stops demo" in log.read_text()


async def test_where_output_goes_to_a_file_it_stays_there(
    served: AsyncCli, client: Client, job: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    async with working(client):
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                SCRIPT, "run", str(job), stdin=DEVNULL, stdout=file
            )
        await until_reads(output, "main running", process)
        process.send_signal(signal.SIGHUP)
        await until_reads(output, GOES_ON, process)
        await complete(client)
        assert await asyncio.wait_for(process.wait(), HUNG_S) == 0
    assert "main completed" in output.read_text()
    assert not (tmp_path / "home" / "run-demo.log").exists()


async def test_a_pipe_that_loses_its_reader_ends_no_run(
    served: AsyncCli, client: Client, job: Path, tmp_path: Path
) -> None:
    """As of `ssh host everstep run` without a terminal: there is no signal, only a write that fails."""
    async with working(client):
        process = await asyncio.create_subprocess_exec(
            SCRIPT, "run", str(job), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        assert process.stdout is not None
        while b"main running" not in await process.stdout.readline():
            assert process.returncode is None
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # its reader ends
        await complete(client)
        assert await asyncio.wait_for(process.wait(), HUNG_S) == 0
    assert "main completed" in (tmp_path / "home" / "run-demo.log").read_text()


async def test_an_error_that_is_no_lost_terminal_is_raised() -> None:
    class FullDisk(JobScreen):
        def show(self, glance: Glance) -> None:
            raise OSError(errno.ENOSPC, f"No space left on device for {glance}")

    terminal = Terminal()
    with pytest.raises(OSError, match="No space left"):
        await LastingScreen(FullDisk(), terminal).update(Glance(at=0.0, status={}))
    assert not terminal.is_gone
