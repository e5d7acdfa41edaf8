"""A terminated job reports to no process; its processes end all the same, soon."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from activities.janitor_activities import SWEPT_EVERY_S
from tests.support.rehearsal import Rehearsal, small

PROMISED_S = 10
"""Between the terminate and the end of the last process; printed, for a slow machine keeps it less well."""


@pytest.mark.long
async def test_the_processes_of_a_terminated_job_end_soon(tmp_path: Path) -> None:
    """Slow machines are no reason to fail; a janitor that comes too seldom is."""
    assert SWEPT_EVERY_S <= PROMISED_S / 3
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        job = await r.submit(small(tmp_path / "job", "first", steps=100_000))
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        pods = r.pods("first")
        assert all(pod.ranks() for pod in pods)
        await job.terminate(reason="by hand")
        since = time.monotonic()
        await r.until(lambda: not any(pod.ranks() for pod in pods), "the end of its processes")
        took = time.monotonic() - since
        sys.stdout.write(f"the processes of a terminated job ended after {took:.1f} s\n")
