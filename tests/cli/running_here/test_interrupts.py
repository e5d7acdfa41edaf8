"""Ctrl-C: the exit code is 130 and nothing is printed, however early it comes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path

from everstep.cli.script import run
from tests.cli.conftest import AsyncCli
from tests.cli.standin import document
from tests.support.devserver import DevServer

SCRIPT = Path(sys.executable).with_name("everstep")


async def test_an_interrupt_is_130_and_silent(served: AsyncCli, server: DevServer) -> None:
    await served("submit", "-", stdin=json.dumps(document()).encode())
    env = {**os.environ, "EVERSTEP_PATIENCE_S": "60"}
    waiting = await asyncio.create_subprocess_exec(
        SCRIPT, "pause", "demo", env=env, stdout=PIPE, stderr=PIPE
    )
    while not is_connected(waiting.pid, server.port):
        assert waiting.returncode is None
        await asyncio.sleep(0.01)
    waiting.send_signal(signal.SIGINT)
    assert await waiting.communicate() == (b"", b"")
    assert waiting.returncode == 130


def is_connected(pid: int, port: int) -> bool:
    """Whether the process has a connection to this port of the machine."""
    peer, established = f":{port:04X}", "01"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = {
        f"socket:[{words[9]}]"
        for words in map(str.split, lines)
        if words[2].endswith(peer) and words[3] == established
    }
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if str(handle.readlink()) in sockets:
                return True
    return False


async def test_an_interrupt_before_everything_is_loaded_is_no_other(tmp_path: Path) -> None:
    # Imported first, and never done with it.
    (tmp_path / "typer.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_name('reached').touch()\ntime.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    loading = await asyncio.create_subprocess_exec(
        SCRIPT, "list", env=env, stdout=PIPE, stderr=PIPE
    )
    while not (tmp_path / "reached").exists():  # a file tells no event loop
        assert loading.returncode is None
        await asyncio.sleep(0.01)
    loading.send_signal(signal.SIGINT)
    assert await loading.communicate() == (b"", b"")
    assert loading.returncode == 130


async def test_an_interrupt_that_a_shell_has_ignored_stays_ignored() -> None:
    program = f"import os; from {run.__module__} import run; os._exit = lambda _code: None; run()"
    print_handler = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(f'{program}; {print_handler}')}"
    script = f"trap '' INT; exec {command}"
    process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=PIPE, stderr=PIPE)
    output, _ = await process.communicate()
    assert output.splitlines()[-1] == b"True"
