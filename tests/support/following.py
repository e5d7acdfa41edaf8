"""Follows a page of docs/ command by command, as its reader would."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from everstep.processes import free_port
from tests.support.machine import EXAMPLES, Machine, until_printed
from tests.support.pages import Page
from tests.support.patience import HUNG_S

POLL_S = 0.5
OF_AN_ENDED_JOB = (0, 1)
"""Exit codes of a command that is only mentioned, given once the job was stopped: none is a usage error."""


def follow(
    page: Page,
    folder: Path,
    machine: Machine,
    *,
    path: str,
    shows: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """What each command printed. `everstep dev` runs beside the others until the page is over.

    A command that comes too early for its job (a kill before the start, a question before the restart, a
    log before the first line) is given again, as a reader would, and one in `shows` until it prints that.
    """
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("out"))
    for name, body in page.files.items():
        (folder / name).write_text(body)
    env = {**machine.env, "PATH": path}
    del env["TEMPORAL_ADDRESS"]  # a reader's commands find the server of their machine
    printed: dict[str, str] = {}
    before, serving, after = _parts(page)
    for command in before:
        printed[command] = _run_until_it_works(command, folder, env)
    ports = ("--port", str(free_port()), "--ui-port", str(free_port()))
    words = shlex.split(serving)[1:]
    with Machine(home=machine.home, env=env).running(*words, *ports, cwd=folder) as process:
        until_printed(process, "Ctrl-C ends")
        for command in after:
            pattern = shows.get(command, "")
            printed[command] = _run_until_it_works(command, folder, env, pattern)
        for command in page.mentioned:
            ended = _run(command, folder, env)
            assert ended.returncode in OF_AN_ENDED_JOB, f"{command}\n{ended.stdout}{ended.stderr}"
            printed[command] = ended.stdout
    return printed


def _parts(page: Page) -> tuple[list[str], str, list[str]]:
    """The commands before `everstep dev`, that one, and those after it, without exports."""
    commands = [line for line in page.commands if not line.startswith("export ")]
    (serving,) = (line for line in commands if line.startswith("everstep dev"))
    at = commands.index(serving)
    return commands[:at], serving, commands[at + 1 :]


def _run_until_it_works(
    command: str, folder: Path, env: Mapping[str, str], pattern: str = ""
) -> str:
    deadline = time.monotonic() + HUNG_S
    while True:
        ended = _run(command, folder, env)
        if ended.returncode == 0 and ended.stdout and pattern in ended.stdout:
            return ended.stdout
        assert time.monotonic() < deadline, f"{command}\n{ended.stdout}{ended.stderr}"
        time.sleep(POLL_S)


def _run(command: str, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
