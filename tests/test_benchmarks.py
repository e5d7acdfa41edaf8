"""A benchmark leaves nothing behind, also where `timeout` ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[1]
WAITS = """
import asyncio

from benchmarks.support.cluster import own_folder

async def main():
    async with own_folder() as folder:
        print(folder, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_benchmark_that_is_terminated_clears_away_what_is_its_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as benchmark:
        assert benchmark.stdout is not None
        folder = Path(benchmark.stdout.readline().strip())
        assert folder.is_dir()
        benchmark.send_signal(signal.SIGTERM)
        benchmark.wait(HUNG_S)
    assert not folder.exists()
    assert benchmark.returncode != 0


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("smallest_job", "validate")),
    ],
)
def test_a_terminated_benchmark_leaves_no_file_and_no_process(name: str, tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{name}"],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as benchmark:
        deadline = time.monotonic() + HUNG_S
        while not any(tmp_path.glob("*/*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        benchmark.send_signal(signal.SIGTERM)
        benchmark.wait(HUNG_S)
    assert benchmark.returncode != 0
    assert [*tmp_path.iterdir()] == []
    assert processes_with(f"TMPDIR={tmp_path}") == []


def processes_with(variable: str) -> list[str]:
    """The commands of all that have it in their environment."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                commands.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or is another user's
            continue
    return commands
