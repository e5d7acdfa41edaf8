"""A benchmark leaves nothing behind, also where `timeout` ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

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
