"""A test run that gets SIGTERM, as from `timeout`, ends in order: what its tests started ends with it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.agent.processes import proc
from tests.conftest import END_S
from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.support.workerproc import ROOT

STARTS_A_PROCESS = """
import asyncio, pathlib, subprocess
import pytest

@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()

async def test_long(sleeper):
    file = pathlib.Path(__file__).with_name("pid")
    file.with_suffix(".tmp").write_text(str(sleeper.pid))
    file.with_suffix(".tmp").rename(file)
    await asyncio.sleep(600)
"""


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="one process"),
        pytest.param(("-n", "1"), id="xdist", marks=pytest.mark.long),  # ten seconds
    ],
)
async def test_processes_of_a_terminated_run_end(tmp_path: Path, more: Sequence[str]) -> None:
    file, pid_file = tmp_path / "test_long.py", tmp_path / "pid"
    file.write_text(STARTS_A_PROCESS)
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p", "no:cacheprovider"]
    run = Child(
        [sys.executable, "-m", "pytest", *options, *more, str(file)],
        name="pytest",
        log=tmp_path / "pytest.log",
        cwd=ROOT,
    )
    try:

        async def has_begun() -> bool:
            return pid_file.exists()

        await run.until(has_begun, within_s=HUNG_S)
        run.send(signal.SIGTERM)
        assert await run.ended(within_s=HUNG_S) == pytest.ExitCode.INTERRUPTED, run.output()
        assert not is_alive(pid_file)
    finally:
        run.kill()
        if is_alive(pid_file):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


NEVER_YIELDS = """
import asyncio, pathlib

async def test_busy():
    pathlib.Path(__file__).with_name("pid").touch()
    while True:
        pass
"""


@pytest.mark.long
async def test_a_terminated_run_whose_test_never_yields_is_killed(tmp_path: Path) -> None:
    """asyncio cancels a test at its next `await`, and there may be none.

    Only this one has a test that cannot be cancelled.
    """
    file, begun = tmp_path / "test_busy.py", tmp_path / "pid"
    file.write_text(NEVER_YIELDS)
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p", "no:cacheprovider"]
    run = Child(
        [sys.executable, "-m", "pytest", *options, str(file)],
        name="pytest",
        log=tmp_path / "pytest.log",
        cwd=ROOT,
        env={**os.environ, END_S: "0.5"},
    )
    try:

        async def has_begun() -> bool:
            return begun.exists()

        await run.until(has_begun, within_s=HUNG_S)
        run.send(signal.SIGTERM)
        assert await run.ended(within_s=HUNG_S) == -signal.SIGKILL, run.output()
    finally:
        run.kill()


def is_alive(pid_file: Path) -> bool:
    process = proc.find(int(pid_file.read_text())) if pid_file.exists() else None
    return process is not None and process.is_alive
